# shellcheck shell=bash
# No fabric, but what the KUnit suites of the wrappers link to. A test loads their module.
# build: tests/wrappers
# kernel: uml-debug
fabric_up() {
    local dep
    for dep in $(modinfo -F depends "$MODULE_WRAPPERS" | tr , ' '); do
        try "modprobe $dep" modprobe "$dep" || return
    done
}
fabric_down() {
    [ ! -d /sys/module/wrappers ] || bounded "rmmod wrappers" rmmod wrappers
}
