// Package fence keeps sandboxes from the addresses of their host, and from each other's
// networks, with rules in the kernel.
//
// The rules are in a table of nftables that belongs to one install. A set in it has the
// network interfaces of the install's sandboxes, and another has each of them twice. So
// daemons on one host do not disturb each other, and neither the engine nor iptables touches
// the table. The rules outlive the daemon. They need CAP_NET_ADMIN in the network namespace
// of the engine.
//
// Each rule has its own text as its comment. By that the fence recognizes the rules that
// stand, and replaces a table that differs, in one transaction. A rule goes only when its
// interface is gone, so a look that is out of date removes none.
package fence

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TablePrefix begins the name of every table; the install's id follows.
const TablePrefix = "agbox-"

// Fence has the rules of one install.
type Fence struct {
	table     *nftables.Table
	resolvers func() []netip.Addr

	// mu orders changes.
	// Held across I/O: nobody may add an interface to a table while it is removed. The
	// calls are to the kernel and do not wait for others.
	mu sync.Mutex
	// drop means that this kernel cannot reject before it routes.
	drop bool

	// joining guards next, the reading of the rules that has not begun yet.
	joining sync.Mutex
	next    *reading
}

// reading is what all who ask for the rules before it begins get. done is closed at its end.
type reading struct {
	done     chan struct{}
	fenced   []string
	complete bool
	err      error
}

// New returns the fence of an install. It changes nothing. resolvers returns the addresses
// of the DNS servers that containers ask. They stay reachable on port 53, also if they are
// addresses of the host.
func New(installID string, resolvers func() []netip.Addr) *Fence {
	return &Fence{
		table:     &nftables.Table{Name: TablePrefix + installID, Family: nftables.TableFamilyINet},
		resolvers: resolvers,
	}
}

// Gaps returns those of the interfaces that no complete rules stand for. It fails with the
// reason HOST_FENCE_UNAVAILABLE if this process can make no rules here, or none for one of
// the interfaces, because this network namespace has no such interface.
func (f *Fence) Gaps(interfaces []string) ([]string, error) {
	now := f.read()
	err := now.err
	if err != nil {
		return nil, err
	}
	var gaps []string
	for _, name := range interfaces {
		switch {
		case now.complete && slices.Contains(now.fenced, name):
		case exists(name):
			gaps = append(gaps, name)
		default:
			err = elsewhere(name)
		}
	}
	return gaps, err
}

// read reads the rules, once for all who call it while another one reads or changes them: after a restart of the
// daemon, that is every sandbox at once.
func (f *Fence) read() *reading {
	f.joining.Lock()
	r, joins := f.next, f.next != nil
	if !joins {
		r = &reading{done: make(chan struct{})}
		f.next = r
	}
	f.joining.Unlock()
	if joins {
		<-r.done
		return r
	}
	defer close(r.done)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.joining.Lock()
	f.next = nil // who asks from now on may need what this one has read already
	f.joining.Unlock()
	r.fenced, r.complete, r.err = f.presentRules()
	return r
}

// Able fails like Gaps if this process can make no rules here.
func (f *Fence) Able() error {
	_, err := f.Gaps(nil)
	return err
}

// Raise makes the rules stand for the interfaces, besides those for which they stand. It
// fails with the reason HOST_FENCE_UNAVAILABLE if this process can make no rules here, or
// if this network namespace has no such interface.
func (f *Fence) Raise(interfaces []string) error {
	for _, name := range interfaces {
		if !exists(name) {
			return elsewhere(name)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	fenced, complete, err := f.presentRules()
	if err != nil {
		return err
	}
	return failed(f.add(interfaces, fenced, complete))
}

// add adds interfaces to the fenced ones. If the rules are not complete, it makes all.
func (f *Fence) add(interfaces, fenced []string, complete bool) error {
	if complete {
		conn := new(nftables.Conn)
		if err := conn.SetAddElements(f.set(), elements(interfaces)); err != nil {
			return err
		}
		if err := conn.SetAddElements(f.same(), pairs(interfaces)); err != nil {
			return err
		}
		if err := conn.Flush(); !errors.Is(err, unix.ENOENT) {
			return err
		}
		// Somebody has removed the table since it was looked at.
	}
	all := slices.Compact(slices.Sorted(slices.Values(slices.Concat(fenced, interfaces))))
	err := f.build(all)
	if !f.drop && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)) {
		f.drop = true
		err = f.build(all)
	}
	return err
}

// Trim removes the rules for interfaces that do not exist any more. It fails like Gaps.
func (f *Fence) Trim() error { return f.trim(false) }

// Tidy is Trim, and removes the table if it has no interfaces. That takes ten times as
// long, and so does the next Raise.
func (f *Fence) Tidy() error { return f.trim(true) }

func (f *Fence) trim(empty bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fenced, complete, err := f.presentRules()
	if err != nil {
		return err
	}
	gone := slices.DeleteFunc(slices.Clone(fenced), exists)
	if empty && len(gone) == len(fenced) {
		return f.clear()
	}
	if len(gone) == 0 {
		return nil
	}
	if !complete { // an older daemon has made them, for example
		return failed(f.add(nil, slices.DeleteFunc(fenced, func(name string) bool { return slices.Contains(gone, name) }), false))
	}
	conn := new(nftables.Conn)
	if err := conn.SetDeleteElements(f.set(), elements(gone)); err != nil {
		return err
	}
	if err := conn.SetDeleteElements(f.same(), pairs(gone)); err != nil {
		return err
	}
	return failed(conn.Flush())
}

// Clear removes all rules. It fails like Gaps.
func (f *Fence) Clear() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.clear()
}

func (f *Fence) clear() error {
	conn := new(nftables.Conn)
	if _, err := conn.ListTableOfFamily(f.table.Name, f.table.Family); errors.Is(err, unix.ENOENT) {
		return nil
	}
	conn.DelTable(f.table)
	return failed(conn.Flush())
}

// build replaces the whole table at once.
func (f *Fence) build(interfaces []string) error {
	conn := new(nftables.Conn)
	conn.AddTable(f.table) // so that there is one to remove
	conn.DelTable(f.table)
	conn.AddTable(f.table)
	if err := conn.AddSet(f.set(), elements(interfaces)); err != nil {
		return err
	}
	if err := conn.AddSet(f.same(), pairs(interfaces)); err != nil {
		return err
	}
	for _, c := range chains(f.resolvers(), f.drop) {
		made := &nftables.Chain{Table: f.table, Name: c.name}
		if c.hook != nil {
			made.Hooknum, made.Priority, made.Type = c.hook, c.priority, nftables.ChainTypeFilter
		}
		conn.AddChain(made)
		for _, r := range c.rules {
			conn.AddRule(&nftables.Rule{Table: f.table, Chain: made, Exprs: r.exprs, UserData: comment(r)})
		}
	}
	return conn.Flush()
}

// comment is how nft stores a comment of a rule.
func comment(r rule) []byte { return userdata.AppendString(nil, userdata.TypeComment, r.text) }

// presentRules returns the fenced interfaces, and whether the rules are the ones that chains
// returns. Without a table there are none.
func (f *Fence) presentRules() (fenced []string, complete bool, err error) {
	conn := new(nftables.Conn)
	_, err = conn.ListTableOfFamily(f.table.Name, f.table.Family)
	if errors.Is(err, unix.ENOENT) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, failed(err)
	}
	members, err := conn.GetSetElements(f.set())
	if err != nil {
		sets, listed := conn.GetSets(f.table)
		if listed == nil && !slices.ContainsFunc(sets, func(s *nftables.Set) bool { return s.Name == setName }) {
			return nil, false, nil // somebody has removed it
		}
		return nil, false, failed(err)
	}
	for _, m := range members {
		fenced = append(fenced, string(bytes.TrimRight(m.Key, "\x00")))
	}
	for _, c := range chains(f.resolvers(), f.drop) {
		rules, err := conn.GetRules(f.table, &nftables.Chain{Name: c.name})
		if err != nil || len(rules) != len(c.rules) {
			return fenced, false, nil
		}
		for i, r := range rules {
			if !bytes.Equal(r.UserData, comment(c.rules[i])) {
				return fenced, false, nil
			}
		}
	}
	return fenced, true, nil
}

// set has the names of the interfaces. Its id is needed within one transaction only.
func (f *Fence) set() *nftables.Set {
	return &nftables.Set{Table: f.table, Name: setName, ID: 1, KeyType: nftables.TypeIFName}
}

// same has each of the interfaces together with itself.
func (f *Fence) same() *nftables.Set {
	return &nftables.Set{
		Table: f.table, Name: sameName, ID: 2, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeIFName, nftables.TypeIFName),
	}
}

// pairs are elements twice.
func pairs(interfaces []string) []nftables.SetElement {
	list := elements(interfaces)
	for i := range list {
		list[i].Key = bytes.Repeat(list[i].Key, 2)
	}
	return list
}

// elements are names of interfaces in the form of the kernel.
func elements(interfaces []string) []nftables.SetElement {
	var list []nftables.SetElement
	for _, name := range interfaces {
		key := make([]byte, unix.IFNAMSIZ)
		copy(key[:unix.IFNAMSIZ-1], name)
		list = append(list, nftables.SetElement{Key: key})
	}
	return list
}

// exists reports whether this network namespace has an interface.
func exists(name string) bool {
	request, err := unix.NewIfreq(name)
	if err != nil {
		return false
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return true // in doubt, the rules stay
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request) == nil
}

// failed returns the error of a call to the kernel.
func failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM):
		return unavailable("agboxd has no right to make rules for the network: run it as root, or give it CAP_NET_ADMIN").Because(err)
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EAFNOSUPPORT):
		return unavailable("the kernel has no nftables, or not the parts that are needed (%v): load or install the modules nf_tables, nft_fib_inet, nft_ct and nft_reject_inet", err).Because(err)
	}
	return fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_INTERNAL_ERROR, "The rules that keep sandboxes from this host's addresses could not be changed: %v", err).Because(err)
}

func elsewhere(name string) error {
	return unavailable("the network interface %s of the engine is not on this host", name)
}

func unavailable(format string, args ...any) *fault.Error {
	f := fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_FENCE_UNAVAILABLE, format, args...)
	f.Message = "Sandboxes cannot be kept from this host's addresses: " + f.Message + "."
	return f
}
