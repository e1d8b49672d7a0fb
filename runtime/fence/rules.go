package fence

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The names in the table.
const (
	setName = "sandboxes"
	// sameName has each interface of setName together with itself.
	sameName   = "same"
	refuseName = "refuse"
)

// metadata are addresses outside of the host that belong to its operator: link-local ones,
// which serve the credentials of cloud machines, and the other addresses that clouds use
// for this. Names such as metadata.google.internal resolve to one of them.
var metadata = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),     // link-local; AWS, Azure, Google, ECS and others
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure, WireServer
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle, older machines
	netip.MustParsePrefix("fd00:ec2::/32"),      // AWS
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google
}

// rule is one rule of a chain.
type rule struct {
	// text is the rule in the syntax of nft. It is stored with the rule, to recognize it.
	text  string
	exprs []expr.Any
}

// chain is a list of rules. One without a hook is called by others.
type chain struct {
	name     string
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    []rule
}

// chains are the rules of the table. resolvers are the DNS servers that containers may ask
// even at a refused address. Before Linux 5.9 a packet cannot be rejected before it is
// routed; drop is for these kernels.
//
// The first chain sees a packet before any destination is translated, so an address of the
// host leads nowhere, also if the engine publishes a port of another container there. The
// second chain sees what is delivered to the host's own processes. It also refuses
// broadcasts and multicasts, which the first must not touch: containers of one network may
// exchange them, and the bridge may show them to it. A packet that an operator's own rule
// has redirected to the host from elsewhere, as transparent proxies need, passes.
//
// The third chain sees what is forwarded. It lets nothing from another network into that of a
// sandbox but replies and published ports. The engine has such rules too, but takes them out
// for some milliseconds whenever it makes a network.
func chains(resolvers []netip.Addr, drop bool) []chain {
	outside := rule{
		"iifname != @" + setName + " accept",
		[]expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
			&expr.Lookup{SourceRegister: 1, SetName: setName, Invert: true},
			verdict(expr.VerdictAccept),
		},
	}
	// Replies of sandboxes, for example of a published port.
	reply := rule{
		"ct direction reply accept",
		[]expr.Any{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: 1}, equal([]byte{1}), verdict(expr.VerdictAccept)},
	}
	common := []rule{outside, reply}
	for _, kind := range []byte{135, 136} { // without neighbours there is no IPv6
		common = append(common, neighbour(kind))
	}
	for _, addr := range resolvers {
		common = append(common, resolver(addr, "udp", unix.IPPROTO_UDP), resolver(addr, "tcp", unix.IPPROTO_TCP))
	}
	before := append([]rule(nil), common...)
	for _, prefix := range metadata {
		before = append(before, toPrefix(prefix))
	}
	before = append(before, rule{
		"fib daddr type local goto " + refuseName,
		[]expr.Any{
			&expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true},
			equal(binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)), gotoRefuse(),
		},
	})
	input := append(append([]rule(nil), common...), published(), rule{
		// A daemon that knows no third chain would add interfaces to one set only. By this
		// text it finds that the table is not its own, and makes it anew.
		"goto " + refuseName + ", and see forward", []expr.Any{gotoRefuse()},
	})
	forward := []rule{
		{
			"oifname != @" + setName + " accept",
			[]expr.Any{
				&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
				&expr.Lookup{SourceRegister: 1, SetName: setName, Invert: true},
				verdict(expr.VerdictAccept),
			},
		},
		{
			"iifname . oifname @" + sameName + " accept", // a bridge may show the kernel its own packets
			[]expr.Any{
				&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: unix.NFT_REG32_00},
				&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: unix.NFT_REG32_04},
				&expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetName: sameName},
				verdict(expr.VerdictAccept),
			},
		},
		reply, published(), {"drop", []expr.Any{verdict(expr.VerdictDrop)}},
	}
	return []chain{
		{name: refuseName, rules: refusal(drop)},
		{name: "prerouting", hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityMangle, rules: before},
		{name: "input", hook: nftables.ChainHookInput, priority: nftables.ChainPriorityFilter, rules: input},
		{name: "forward", hook: nftables.ChainHookForward, priority: nftables.ChainPriorityFilter, rules: forward},
	}
}

// published accepts packets whose destination was translated, for example to a published
// port.
func published() rule {
	const dnat = 1 << 5 // IPS_DST_NAT of the kernel
	return rule{
		"ct status dnat accept",
		[]expr.Any{
			&expr.Ct{Key: expr.CtKeySTATUS, Register: 1},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(dnat), Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: make([]byte, 4)}, verdict(expr.VerdictAccept),
		},
	}
}

// refusal ends a connection at once. Some network stacks ignore other answers than these.
func refusal(drop bool) []rule {
	if drop {
		return []rule{{"drop", []expr.Any{verdict(expr.VerdictDrop)}}}
	}
	return []rule{
		{"meta l4proto tcp reject with tcp reset", append(protocol(unix.IPPROTO_TCP), &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})},
		{"reject with icmpx port-unreachable", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_PORT_UNREACH}}},
	}
}

// neighbour accepts a message of IPv6 neighbour discovery.
func neighbour(kind byte) rule {
	exprs := append(protocol(unix.IPPROTO_ICMPV6),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		equal([]byte{kind}), verdict(expr.VerdictAccept))
	return rule{fmt.Sprintf("icmpv6 type %d accept", kind), exprs}
}

// resolver accepts questions to a DNS server.
func resolver(addr netip.Addr, name string, number byte) rule {
	exprs := append(destination(netip.PrefixFrom(addr, addr.BitLen())), protocol(number)...)
	exprs = append(exprs,
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		equal(binary.BigEndian.AppendUint16(nil, 53)), verdict(expr.VerdictAccept))
	return rule{fmt.Sprintf("%s daddr %s %s dport 53 accept", family(addr), addr, name), exprs}
}

func toPrefix(p netip.Prefix) rule {
	return rule{
		fmt.Sprintf("%s daddr %s goto %s", family(p.Addr()), p, refuseName),
		append(destination(p), gotoRefuse()),
	}
}

func family(addr netip.Addr) string {
	if addr.Is4() {
		return "ip"
	}
	return "ip6"
}

// destination matches packets to a prefix.
func destination(p netip.Prefix) []expr.Any {
	version, offset := byte(unix.NFPROTO_IPV4), uint32(16)
	if p.Addr().Is6() {
		version, offset = unix.NFPROTO_IPV6, 24
	}
	size := uint32(p.Addr().BitLen() / 8)
	mask := make([]byte, size)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, equal([]byte{version}),
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: size, Mask: mask, Xor: make([]byte, size)},
		equal(p.Masked().Addr().AsSlice()),
	}
}

// protocol matches packets of a transport protocol.
func protocol(number byte) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{number})}
}

func equal(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }

func verdict(kind expr.VerdictKind) expr.Any { return &expr.Verdict{Kind: kind} }

func gotoRefuse() expr.Any { return &expr.Verdict{Kind: expr.VerdictGoto, Chain: refuseName} }
