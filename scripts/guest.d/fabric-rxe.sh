# shellcheck shell=bash disable=SC2034
# Two soft-RoCE devices on a veth pair in the first namespace. Options: mtu=N of the Ethernet below
# (default 9000, which gives an IB MTU of 4096).
PORT_A=rxe0/1 PORT_B=rxe1/1 FABRIC_PARAMS='roce=1'

rxe_one() {
    local link=$1 rxe=$2
    # Port 0's GID is the link-local EUI-64 address: the IP stack must own it, and at once.
    sysctl -qw "net.ipv6.conf.$link.accept_dad=0" "net.ipv6.conf.$link.addr_gen_mode=0"
    try "$link up" ip link set "$link" up || return
    wait_for "the link-local address of $link" \
        bash -c "ip -6 -o addr show dev $link scope link -tentative | grep -q fe80:" || return
    try "rdma link add $rxe" rdma link add "$rxe" type rxe netdev "$link"
}

rxe_active() { grep -q ACTIVE "/sys/class/infiniband/$1/ports/1/state"; }

fabric_up() {
    local mtu=${OPT_mtu:-9000}
    try "modprobe rdma_rxe" modprobe rdma_rxe || return
    try "veth pair" ip link add v0 mtu "$mtu" type veth peer name v1 mtu "$mtu" || return
    # With the peer still down there is no carrier and no link-local address.
    try "v1 up" ip link set v1 up || return
    rxe_one v0 rxe0 && rxe_one v1 rxe1 || return
    wait_for "rxe0" rxe_active rxe0 && wait_for "rxe1" rxe_active rxe1
}

fabric_down() {
    local d
    for d in rxe0 rxe1; do
        [ ! -e /sys/class/infiniband/$d ] || bounded "rdma link delete $d" rdma link delete $d || return
    done
    [ ! -e /sys/class/net/v0 ] || bounded "removing the veth pair" ip link del v0
}
