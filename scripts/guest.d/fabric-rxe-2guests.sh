# shellcheck shell=bash disable=SC2034
# guests: 2
# One soft-RoCE device in each of two guests, on virtio network cards that are joined by a UNIX socket.
# Options: mtu=N of the Ethernet below (default 9000).
FABRIC_PARAMS='roce=1'
if [ "$GUEST_ROLE" = A ]; then PORT_A=rxe0/1; else PORT_B=rxe0/1; fi

card() {
    local d
    for d in /sys/class/net/*; do
        [ "$(basename "$(readlink -f "$d/device/driver" 2>/dev/null)")" = virtio_net ] || continue
        echo "${d##*/}"
        return
    done
    return 1
}

rxe_active() { grep -q ACTIVE /sys/class/infiniband/rxe0/ports/1/state; }

fabric_up() {
    local link
    try "modprobe" modprobe -a virtio_net rdma_rxe || return
    wait_for "the network card" card || return
    link=$(card)
    sysctl -qw "net.ipv6.conf.$link.accept_dad=0" "net.ipv6.conf.$link.addr_gen_mode=0"
    try "MTU of $link" ip link set "$link" mtu "${OPT_mtu:-9000}" || return
    try "$link up" ip link set "$link" up || return
    wait_for "the link-local address of $link" \
        bash -c "ip -6 -o addr show dev $link scope link -tentative | grep -q fe80:" || return
    try "rdma link add" rdma link add rxe0 type rxe netdev "$link" || return
    wait_for rxe0 rxe_active
}

fabric_down() {
    [ ! -e /sys/class/infiniband/rxe0 ] || bounded "rdma link delete rxe0" rdma link delete rxe0
}
