# shellcheck shell=bash disable=SC2034
# A veth pair between the two namespaces: the control on which every test must pass without a driver of
# ours, or its failure says nothing about the driver. Option: mtu=N (default 2044).
FABRIC_HAS_NETDEVS=1
fabric_up() {
    namespaces_up || return
    IF_A=veth0 IF_B=veth1
    try "veth pair" ip link add $IF_A netns "$NS_A" mtu "${OPT_mtu:-2044}" type veth \
        peer name $IF_B netns "$NS_B" mtu "${OPT_mtu:-2044}"
}
fabric_down() { :; }
