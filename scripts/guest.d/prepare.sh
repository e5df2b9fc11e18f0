# shellcheck shell=bash disable=SC2034
# Functions that prepare a guest: fabric, driver, interfaces. Sourced by the job, by bin/guest-setup and
# by the fabric plug-ins (fabric-NAME.sh). A function that fails leaves the reason in PREPARE_ERROR.
#
# A plug-in defines:
#   fabric_up        makes the devices. May read OPT_* (from --fabric NAME:key=value,...)
#   fabric_down      removes them
# and may set:
#   PORT_A, PORT_B   RDMA device/port of each side, for example rxe0/1. One that is not in this guest is
#                    empty. The driver's interfaces are found by the port's GID.
#   PORT_C, PORT_D   ports of the in-tree driver with --driver both; they may be the same as A's and B's
#   FABRIC_PARAMS    module parameters that ipoib_rs needs on this fabric
#   FABRIC_HAS_NETDEVS, IF_A, IF_B   when the fabric brings network devices by itself
# Header comments of a plug-in, read by the runner: "# guests: N", "# build: FOLDER" (a module of this
# repository that must be built first; it is at $MODULE_<name in capitals> in the guest), "# kernel: NAME" (the
# only kernel that the module is built for).

PREPARE_ERROR='' FABRIC_PARAMS='' FABRIC_HAS_NETDEVS='' PORT_A='' PORT_B=''
NS_A=a NS_B=b IF_A='' IF_B=''
PORT_C='' PORT_D='' NS_C='' NS_D='' IF_C='' IF_D=''
[ "${GUEST_DRIVER:-}" != both ] || NS_C=c NS_D=d
IP4_C=10.78.0.1 IP4_D=10.78.0.2 IP6_C=fd78::1 IP6_D=fd78::2
IP4_A=10.77.0.1 IP4_B=10.77.0.2 IP6_A=fd77::1 IP6_B=fd77::2
# Generous: a loaded machine without KVM is ten times slower than an idle one.
PREPARE_SECONDS=${PREPARE_SECONDS:-120}

bad() {
    PREPARE_ERROR=$*
    return 1
}

# try WHAT CMD...: runs a command, keeps its message as the reason.
try() {
    local what=$1 out
    shift
    out=$("$@" 2>&1) || bad "$what: ${out:-exit status $?}"
}

# wait_for WHAT CMD...: polls until the command succeeds.
wait_for() {
    local what=$1 end=$((SECONDS + PREPARE_SECONDS))
    shift
    while ((SECONDS < end)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.05
    done
    bad "timed out waiting for $what"
}

# The parts of --fabric NAME:key=value,...: a file name and OPT_* variables.
fabric_parse() {
    local opts kv
    FABRIC=${GUEST_FABRIC%%:*}
    opts=${GUEST_FABRIC#"$FABRIC"}
    for kv in ${opts//[:,]/ }; do
        [[ $kv =~ ^[a-z_]+=[A-Za-z0-9_.-]+$ ]] || { bad "bad fabric option '$kv'"; return 1; }
        printf -v "OPT_${kv%%=*}" %s "${kv#*=}"
    done
}

fabric_source() {
    fabric_parse || return
    [ -r "/src/scripts/guest.d/fabric-$FABRIC.sh" ] || { bad "no such fabric: $FABRIC"; return 1; }
    # shellcheck source=/dev/null
    . "/src/scripts/guest.d/fabric-$FABRIC.sh"
}

namespaces_up() {
    local ns
    for ns in "$NS_A" "$NS_B" "$NS_C" "$NS_D"; do
        [ -n "$ns" ] || continue
        [ -e "/run/netns/$ns" ] || try "namespace $ns" ip netns add "$ns" || return
        try "namespace $ns" ip -n "$ns" link set lo up || return
    done
}

prepare_fabric() {
    # Two guests: each has its own side only.
    if [ "$GUEST_GUESTS" = 2 ]; then
        if [ "$GUEST_ROLE" = A ]; then NS_B=''; else NS_A=''; fi
    fi
    fabric_source && fabric_up && namespaces_up
}

# driver_load NAME [PARAMETERS]
driver_load() {
    local params
    case $1 in
    none) return ;;
    ib_ipoib)
        rm -f /etc/modprobe.d/no-ib-ipoib.conf
        read -ra params <<<"${2:-}"
        # The blacklist keeps aliases from loading it; by its name it still loads.
        try "modprobe ib_ipoib" modprobe ib_ipoib "${params[@]}"
        ;;
    ipoib_rs)
        read -ra params <<<"$FABRIC_PARAMS ${2:-}"
        [ -e "$MODULE" ] || { bad "there is no $MODULE"; return 1; }
        # insmod does not load what the module needs.
        local dep
        for dep in $(modinfo -F depends "$MODULE" | tr , ' '); do
            try "modprobe $dep" modprobe "$dep" || return
        done
        try "insmod $MODULE ${params[*]}" insmod "$MODULE" "${params[@]}"
        ;;
    # In this order: the in-tree driver does not load when its kind of link is taken.
    both | mixed) driver_load ib_ipoib && driver_load ipoib_rs "${2:-}" ;;
    *) bad "no such driver: $1" ;;
    esac
}

driver_name() {
    [ "$1" = ib_ipoib ] && echo ib_ipoib && return
    basename "$MODULE" .ko
}

# The network device of DRIVER on an RDMA port (DEVICE/PORT), in the first namespace: the hardware address
# of an IPoIB interface ends in the port's GID.
iface_of_port() {
    local gid dev mac driver=$2
    gid=$(cat "/sys/class/infiniband/${1%/*}/ports/${1#*/}/gids/0" 2>/dev/null) || return
    for dev in /sys/class/net/*; do
        [ "$(cat "$dev/type")" = 32 ] || continue
        mac=$(cat "$dev/address")
        [ "${mac:12}" = "$(sed 's/://g; s/../&:/g; s/:$//' <<<"$gid")" ] || continue
        ethtool -i "${dev##*/}" 2>/dev/null | grep -qi "^driver: .*${driver}" || continue
        echo "${dev##*/}"
        return
    done
    return 1
}

# Puts the interface of one side into its namespace, with addresses, up.
side_up() {
    local side=$1 port=$2 ns=$3 ip4=$4 ip6=$5 driver=$6 name
    [ -n "$ns" ] || return 0
    name=IF_$side
    if [ -z "$FABRIC_HAS_NETDEVS" ]; then
        wait_for "an interface of $driver on $port" iface_of_port "$port" "$driver" || return
        printf -v "$name" %s "$(iface_of_port "$port" "$driver")"
        try "moving ${!name}" ip link set "${!name}" netns "$ns" || return
    fi
    try "address of ${!name}" ip -n "$ns" addr add "$ip4/24" dev "${!name}" || return
    # Below its least MTU the interface has no IPv6 at all.
    if [ "$(ip netns exec "$ns" cat "/sys/class/net/${!name}/mtu")" -ge 1280 ]; then
        ip netns exec "$ns" sysctl -qw net.ipv6.conf.default.accept_dad=0 "net.ipv6.conf.${!name}.accept_dad=0"
        try "address of ${!name}" ip -n "$ns" addr add "$ip6/64" dev "${!name}" nodad || return
    fi
    try "up ${!name}" ip -n "$ns" link set "${!name}" up
}

# What a person wants to see when the preparation has failed.
prepare_state() {
    local ns f
    rdma link
    ip -s -d link
    ip addr
    for ns in $NS_A $NS_B $NS_C $NS_D; do
        echo "== namespace $ns"
        ip -n "$ns" -s -d link
        ip -n "$ns" addr
        ip -n "$ns" neigh
    done
    for f in /sys/kernel/debug/ipoib_rs/*; do
        [ ! -f "$f" ] || { echo "== $f"; timeout 5 cat "$f"; }
    done
}

carrier() { [ "$(ip netns exec "$1" cat "/sys/class/net/$2/carrier" 2>/dev/null)" = 1 ]; }

# ifaces_up [DRIVER]: both sides, then waits until they reach each other.
ifaces_up() {
    local driver=${1:-$GUEST_DRIVER} name peer
    name=$(driver_name "$driver")
    peer=$name
    [ "$driver" != mixed ] || peer=ib_ipoib
    side_up A "$PORT_A" "$NS_A" $IP4_A $IP6_A "$name" || return
    side_up B "$PORT_B" "$NS_B" $IP4_B $IP6_B "$peer" || return
    if [ "$driver" = both ]; then
        side_up C "$PORT_C" "$NS_C" $IP4_C $IP6_C ib_ipoib || return
        side_up D "$PORT_D" "$NS_D" $IP4_D $IP6_D ib_ipoib || return
        wait_for "carrier on $IF_C" carrier "$NS_C" "$IF_C" || return
        wait_for "carrier on $IF_D" carrier "$NS_D" "$IF_D" || return
        wait_for "an answer from $IP4_D" ip netns exec "$NS_C" ping -q -c 1 -W 1 $IP4_D || return
    fi
    [ -z "$NS_A" ] || wait_for "carrier on $IF_A" carrier "$NS_A" "$IF_A" || return
    [ -z "$NS_B" ] || wait_for "carrier on $IF_B" carrier "$NS_B" "$IF_B" || return
    [ "$GUEST_GUESTS" != 1 ] || peer_wait
}

# Waits until B answers A.
peer_wait() {
    [ "$IF_A" ] || return 0
    wait_for "an answer from $IP4_B" ip netns exec "$NS_A" ping -q -c 1 -W 1 $IP4_B || return
    # IPv6 does without where the MTU is below the 1280 bytes that it needs.
    [ "$(cat_mtu)" -ge 1280 ] || return 0
    wait_for "an answer from $IP6_B" ip netns exec "$NS_A" ping -q -c 1 -W 1 $IP6_B
}

cat_mtu() { ip netns exec "$NS_A" cat "/sys/class/net/$IF_A/mtu"; }

prepare_export() {
    export NS_C NS_D IF_C IF_D IP4_C IP4_D IP6_C IP6_D PORT_C PORT_D
    export NS_A NS_B IF_A IF_B IP4_A IP4_B IP6_A IP6_B PORT_A PORT_B FABRIC_PARAMS
}

# bounded WHAT CMD...: like try, with a time limit. A command that hangs in the kernel cannot be killed: it
# is left behind, and the kernel log gets the stacks of all that is blocked.
bounded() {
    local what=$1 end=$((SECONDS + PREPARE_SECONDS)) out pid
    shift
    out=$(mktemp)
    echo "guest: $what" >/dev/kmsg
    "$@" >"$out" 2>&1 &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        if ((SECONDS >= end)); then
            kill -KILL $pid
            echo w >/proc/sysrq-trigger
            bad "$what: does not end"
            return
        fi
        sleep 0.05
    done
    wait $pid || bad "$what: $(cat "$out")"
}

ifaces_down() {
    local ns
    for ns in $NS_A $NS_B $NS_C $NS_D; do
        [ -e "/run/netns/$ns" ] || continue
        ip netns pids "$ns" | xargs -r kill -KILL
        bounded "removing namespace $ns" ip netns del "$ns" || return
    done
}

driver_unload() {
    local m=$1
    [ "$m" = ib_ipoib ] || m=$(driver_name "$m")
    [ -d "/sys/module/$m" ] || return 0
    bounded "rmmod $m" rmmod "$m"
}

everything_down() {
    ifaces_down || return
    driver_unload ipoib_rs || return
    driver_unload ib_ipoib || return
    fabric_down
}
