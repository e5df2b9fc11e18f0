# shellcheck shell=bash
# Functions shared by the set-up scripts. Sourced, never run.
#
# Environment that a user may set:
#   IPOIB_CACHE   where build roots live (default /var/cache/ipoib-rs)
#   IPOIB_MIRROR  Debian mirror, when the machine's own apt sources name none

# The variables set here are read by the scripts that source this file.
# shellcheck disable=SC2034
SCRIPTS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
SRC=$(dirname "$SCRIPTS")
CACHE=${IPOIB_CACHE:-/var/cache/ipoib-rs}

say() { printf '%s\n' "${0##*/}: $*" >&2; }

die() {
    printf '%s\n' "${0##*/}: error: $*" >&2
    exit 1
}

# Answers --help with the head of the calling script. Pass the script's own arguments.
help_wanted() {
    [[ ${1:-} =~ ^(-h|--help)$ ]] || return 0
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
    exit 0
}

# Re-runs the calling script as root when it is not. Pass the script's own arguments.
need_root() {
    [ "$(id -u)" -eq 0 ] && return
    command -v sudo >/dev/null ||
        die "this needs root and there is no sudo: run it as root, or install sudo"
    exec sudo --preserve-env=IPOIB_CACHE,IPOIB_MIRROR,IPOIB_KERNEL,TERM \
        IPOIB_CALLER="$(id -u):$(id -g):$(id -G | tr ' ' ',')" -- \
        "$SCRIPTS/${0##*/}" "$@" ||
        die "sudo failed: run this as root"
}

need_arch() {
    local arch
    arch=$(dpkg --print-architecture 2>/dev/null) ||
        die "dpkg is missing: this runs on Debian and its relatives only"
    [ "$arch" = amd64 ] ||
        die "architecture '$arch' is not supported: the build root and the guest are amd64 only"
}

need_mounts() {
    unshare --mount --propagation private -- true 2>/dev/null ||
        die "mount namespaces are not permitted here: a container needs CAP_SYS_ADMIN for this"
}

# need_disk DIR GIGABYTES
need_disk() {
    local have
    have=$(df --output=avail --block-size=1M "$1" | tail -n 1)
    [ "$have" -ge $(($2 * 1024)) ] ||
        die "not enough disk: $1 has $((have / 1024)) GB free, $2 GB are needed (IPOIB_CACHE can point elsewhere)"
}

# Prints the Debian mirror that this machine's apt uses (deb822 and one-line sources alike:
# apt reads both for us).
find_mirror() {
    local found codename
    if [ -n "${IPOIB_MIRROR:-}" ]; then
        printf '%s\n' "$IPOIB_MIRROR"
        return
    fi
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    # LABEL is empty until the first `apt-get update`, so the release name is the second choice.
    # shellcheck disable=SC2016
    found=$(apt-get indextargets --format '$(LABEL)|$(RELEASE)|$(COMPONENT)|$(REPO_URI)' \
        'Created-By: Packages' 2>/dev/null |
        awk -F'|' -v cn="$codename" '
            $3 != "main" || $4 !~ /^(https?|file|mirror|tor)/ { next }
            $1 == "Debian" && !label { label = $4 }
            $2 == cn && $1 == "" && !name { name = $4 }
            END { print label ? label : name }')
    [ -n "$found" ] ||
        die "apt's sources name no Debian mirror: set IPOIB_MIRROR to the URL of one"
    printf '%s\n' "${found%/}"
}

# Reads scripts/kernels/NAME.conf; see stock.conf for what it sets.
read_kernel_conf() {
    KERNEL=$1
    case $KERNEL in
    '' | *[!a-z0-9-]*) die "bad kernel name '$KERNEL'" ;;
    esac
    [ -r "$SCRIPTS/kernels/$KERNEL.conf" ] ||
        die "no kernel '$KERNEL': scripts/kernels has $(cd "$SCRIPTS/kernels" && echo *.conf | sed 's/\.conf//g')"
    KDIR_SCRIPT=prepare-kdir KDIR_ARGS='' KDIR_MAKE='' KDIR_GUEST=qemu KDIR_TIME='about 4 minutes'
    # shellcheck source=/dev/null
    . "$SCRIPTS/kernels/$KERNEL.conf"
    ROOT_LINK=$CACHE/root
    [ "$ROOT_SUITE" = trixie ] || ROOT_LINK=$CACHE/root-$ROOT_SUITE
    PACKAGES=$SCRIPTS/packages.$ROOT_SUITE
}

# What a root is made of, as a short hash. The resolved kernel version is left out on purpose: it
# would need the network to tell whether the cache is good.
root_hash() {
    { echo "format 1" && sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$PACKAGES" &&
        echo "$ROOT_SUITE $KERNEL_SUITE $KERNEL_VERSION"; } | sha256sum | cut -c1-12
}
