package notation

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// maxRange bounds the ports of one range, so that a typing error does not publish
// thousands of ports.
const maxRange = 256

// Ports parses a published port as docker -p does: "8080:80", "80",
// "127.0.0.1:8080:80/udp", "[::1]:8080:80", "8000-8010:8000-8010". Without a host port
// the engine chooses a free one. A range results in several mappings.
func Ports(text string) ([]*agboxv1.PortMapping, error) {
	bad := func(why string) ([]*agboxv1.PortMapping, error) {
		return nil, fmt.Errorf("%s is not a port%s: write [[ADDRESS:]HOST_PORT:]PORT[/PROTOCOL], for example 8080:80 or 127.0.0.1:5353:53/udp", quote(text), why)
	}
	rest, word, hasProtocol := strings.Cut(text, "/")
	protocol, known := agboxv1.PortProtocol_value["PORT_PROTOCOL_"+strings.ToUpper(word)]
	if hasProtocol && !known {
		return bad(" (tcp, udp and sctp are the protocols)")
	}
	ip := ""
	if after, bracket := strings.CutPrefix(rest, "["); bracket {
		var closed bool
		if ip, rest, closed = strings.Cut(after, "]:"); !closed {
			return bad("")
		}
		if strings.Count(rest, ":") == 0 {
			rest = ":" + rest
		}
	} else if strings.Count(rest, ":") == 2 {
		ip, rest, _ = strings.Cut(rest, ":")
	}
	if ip != "" {
		if _, err := netip.ParseAddr(ip); err != nil {
			return bad(" (" + quote(ip) + " is not an IP address)")
		}
	}
	host, container, both := strings.Cut(rest, ":")
	if !both {
		host, container = "", rest
	}
	first, last, err := portRange(container, 1)
	if err != nil {
		return bad(" (" + err.Error() + ")")
	}
	var hostFirst int
	if host != "" {
		var hostLast int
		if hostFirst, hostLast, err = portRange(host, 0); err != nil {
			return bad(" (" + err.Error() + ")")
		}
		if hostLast-hostFirst != last-first {
			return bad(" (the two ranges differ in length)")
		}
	}
	var all []*agboxv1.PortMapping
	for i := range last - first + 1 {
		m := &agboxv1.PortMapping{ContainerPort: uint32(first + i), Protocol: agboxv1.PortProtocol(protocol), HostIp: ip}
		if hostFirst > 0 {
			m.HostPort = uint32(hostFirst + i)
		}
		all = append(all, m)
	}
	return all, nil
}

func portRange(text string, least int) (first, last int, err error) {
	from, to, isRange := strings.Cut(text, "-")
	if first, err = port(from, least); err != nil {
		return 0, 0, err
	}
	if last = first; isRange {
		if last, err = port(to, least); err != nil {
			return 0, 0, err
		}
	}
	switch {
	case last < first:
		return 0, 0, fmt.Errorf("%s runs backwards", quote(text))
	case last-first >= maxRange:
		return 0, 0, fmt.Errorf("%s has more than %d ports", quote(text), maxRange)
	}
	return first, last, nil
}

func port(text string, least int) (int, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n < uint64(least) || n > 65535 {
		return 0, fmt.Errorf("%s is not between %d and 65535", quote(text), least)
	}
	return int(n), nil
}

// Mount parses "SOURCE:TARGET". The suffix ":rw" makes it writable.
func Mount(text string) (*agboxv1.MountSpec, error) {
	source, target, options, ok := pair(text)
	if !ok {
		return nil, fmt.Errorf("%s is not a mount: write SOURCE:TARGET with an absolute TARGET, and :rw behind it to make it writable", quote(text))
	}
	m := &agboxv1.MountSpec{Source: source, Target: target}
	switch options {
	case "", "ro":
	case "rw":
		m.Writable = true
	default:
		return nil, fmt.Errorf("%s is not an option of a mount in %s: there are rw and ro", quote(options), quote(text))
	}
	return m, nil
}

// Copy parses "SOURCE:TARGET".
func Copy(text string) (*agboxv1.CopySpec, error) {
	source, target, options, ok := pair(text)
	if !ok || options != "" {
		return nil, fmt.Errorf("%s is not a copy: write SOURCE:TARGET with an absolute TARGET", quote(text))
	}
	return &agboxv1.CopySpec{Source: source, Target: target}, nil
}

// Volume parses "NAME:TARGET". The suffix ":ro" makes it read-only.
func Volume(text string) (*agboxv1.VolumeSpec, error) {
	name, target, options, ok := pair(text)
	if !ok || options != "" && options != "ro" && options != "rw" {
		return nil, fmt.Errorf("%s is not a volume: write NAME:TARGET with an absolute TARGET, and :ro behind it to make it read-only", quote(text))
	}
	return &agboxv1.VolumeSpec{Name: name, Target: target, ReadOnly: options == "ro"}, nil
}

// Workspace parses "SOURCE" or "SOURCE:TARGET".
func Workspace(text string) (source, target string) {
	if source, target, options, ok := pair(text); ok && options == "" {
		return source, target
	}
	return text, ""
}

// pair splits "A:B" or "A:B:OPTIONS". B is the last part that begins with '/', or is "~"
// or begins with "~/". So A may contain ':'.
func pair(text string) (a, b, options string, ok bool) {
	for at := strings.LastIndex(text, ":"); at > 0; at = strings.LastIndex(text[:at], ":") {
		b, options, _ = strings.Cut(text[at+1:], ":")
		if b == "~" || strings.HasPrefix(b, "/") || strings.HasPrefix(b, "~/") {
			return text[:at], b, options, true
		}
	}
	return "", "", "", false
}

// Tmpfs parses "TARGET", "TARGET:SIZE" or the engine's "TARGET:size=64m,mode=1777".
func Tmpfs(text string) (*agboxv1.TmpfsSpec, error) {
	target, options, _ := strings.Cut(text, ":")
	t := &agboxv1.TmpfsSpec{Target: target}
	if target == "" {
		return nil, fmt.Errorf("%s is not a folder in memory: write TARGET or TARGET:SIZE, for example /tmp:64m", quote(text))
	}
	if options == "" {
		return t, nil
	}
	for option := range strings.SplitSeq(options, ",") {
		switch key, value, given := strings.Cut(option, "="); {
		case !given:
			t.Size = key
		case key == "size":
			t.Size = value
		case key == "mode":
			t.Mode = value
		default:
			return nil, fmt.Errorf("%s is not an option of a folder in memory in %s: there are size and mode", quote(key), quote(text))
		}
	}
	return t, nil
}

// Ulimit parses "NAME=SOFT" or "NAME=SOFT:HARD". "unlimited" is -1.
func Ulimit(text string) (*agboxv1.UlimitSpec, error) {
	name, limits, ok := strings.Cut(text, "=")
	soft, hard, both := strings.Cut(limits, ":")
	u := &agboxv1.UlimitSpec{Name: name}
	var err error
	if ok {
		u.Soft, err = Limit(soft)
	}
	if ok && err == nil && both {
		var h int64
		h, err = Limit(hard)
		u.Hard = &h
	}
	if !ok || name == "" || err != nil {
		return nil, fmt.Errorf("%s is not a ulimit: write NAME=SOFT or NAME=SOFT:HARD, for example nofile=1024:4096", quote(text))
	}
	return u, nil
}

// Limit parses a number of a ulimit. "unlimited" is -1.
func Limit(text string) (int64, error) {
	if text == "unlimited" {
		return -1, nil
	}
	return strconv.ParseInt(text, 10, 64)
}
