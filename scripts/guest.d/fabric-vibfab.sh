# shellcheck shell=bash disable=SC2034
# Virtual InfiniBand HCAs on one switch (tests/vibfab). Options are the module's parameters, a list with
# dots for commas (partition=0xffff.0x8001), and sm=embedded (default) or sm=opensm.
# build: tests/vibfab
PORT_A=vib0/1 PORT_B=vib1/1 PORT_C=vib0/2 PORT_D=vib1/2
# Where there is no second port, both drivers have an interface on the same one.
[ "${OPT_ports:-2}" != 1 ] || PORT_C=vib0/1 PORT_D=vib1/1
[ "${OPT_hcas:-2}" != 1 ] || PORT_B=vib0/2 PORT_C=vib0/1 PORT_D=vib0/2
VIBFAB_DEBUG=/sys/kernel/debug/vibfab

vibfab_params() {
    local name value
    for name in $(compgen -v OPT_); do
        value=${!name}
        name=${name#OPT_}
        case $name in
        partition) value=${value//./,} ;;
        sm) [ "$value" != opensm ] || value=external ;;
        esac
        echo "$name=$value"
    done
}

vibfab_active() { ! grep -v ACTIVE /sys/class/infiniband/vib*/ports/*/state; }

vibfab_opensm() {
    local guid mtu=5 part conf=/run/opensm.partitions
    [ "${OPT_mtu:-4096}" != 2048 ] || mtu=4
    echo "Default=0x7fff, ipoib, mtu=$mtu : ALL=full;" >$conf
    local parts=${OPT_partition:-}
    for part in ${parts//./ }; do
        [ $((part & 0x7fff)) = $((0x7fff)) ] || echo "p$part=$part, ipoib, mtu=$mtu : ALL=full;" >>$conf
    done
    guid=$(sed -n 's/^port=vib0\/1 .* guid=\(0x[0-9a-f]*\) .*/\1/p' $VIBFAB_DEBUG/state)
    try "opensm" opensm --daemon -g "$guid" -P $conf -s 3 -f /run/opensm.log --pidfile /run/opensm.pid || return
    wait_for "opensm to bring the ports up" vibfab_active
}

fabric_up() {
    local params dep module=/src/build/$GUEST_KERNEL-vibfab/vibfab.ko
    mapfile -t params < <(vibfab_params)
    for dep in ib_core ib_cm ib_umad; do
        try "modprobe $dep" modprobe $dep || return
    done
    try "insmod vibfab.ko ${params[*]}" insmod "$module" "${params[@]}" || return
    if [ "${OPT_sm:-}" = opensm ]; then
        vibfab_opensm || return
    fi
    [ "${OPT_sm:-}" = external ] || wait_for "active ports" vibfab_active
}

# What a driver did wrong makes the run dirty. A test that provokes it clears the counters after itself.
fabric_down() {
    [ -d /sys/module/vibfab ] || return 0
    if pkill -x opensm; then
        wait_for "the end of opensm" bash -c '! pgrep -x opensm'
    fi
    grep -v '=0$' $VIBFAB_DEBUG/strict | sed 's/^/<3>guest health: vibfab: strict check: /' >/dev/kmsg
    bounded "rmmod vibfab" rmmod vibfab
}
