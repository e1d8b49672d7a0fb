package document

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/docker/go-units"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ParseBytes parses a size such as "512m", "1.5g", "4GiB" or "1048576", as docker does. Units
// are binary: k is 1024 bytes. The result is at least 0.
func ParseBytes(text string) (int64, error) {
	size, err := units.RAMInBytes(text)
	switch number := strings.TrimRight(strings.ToLower(text), "bikmgtp "); {
	case err != nil || !plainNumber(number):
		return 0, fmt.Errorf("%s is not a size: write a number and k, m, g or t, for example 512m or 4g", quote(text))
	case size < 0 || size == math.MaxInt64: // the number does not fit into an int64
		return 0, fmt.Errorf("%s is more than any machine has: write less, for example 4g", quote(text))
	}
	return size, nil
}

// ParseMemory parses a limit of memory: a size as ParseBytes takes it, or "unlimited", which is 0.
func ParseMemory(text string) (int64, error) {
	if text == "unlimited" {
		return 0, nil
	}
	return ParseBytes(text)
}

// ParseCPUs parses a number of processors such as "1.5" and returns billionths of one. The
// result is greater than 0.
func ParseCPUs(text string) (int64, error) {
	const most = 1 << 20
	whole, fraction, _ := strings.Cut(text, ".")
	number, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil || !plainNumber(text) || whole == "" && fraction == "":
		return 0, fmt.Errorf("%s is not a number of processors: write for example 2 or 0.5", quote(text))
	case len(fraction) > 9:
		return 0, fmt.Errorf("%s has more than 9 digits after the point: write fewer", quote(text))
	case number <= 0:
		return 0, fmt.Errorf("%s leaves no processor: write more than 0, for example 0.5", quote(text))
	case number > most:
		return 0, fmt.Errorf("%s is more than any machine has: write fewer, for example 4", quote(text))
	}
	return int64(math.Round(number * 1e9)), nil
}

// plainNumber rejects other forms that ParseFloat accepts: signs, exponents, names.
func plainNumber(text string) bool {
	return text != "" && strings.Trim(text, "0123456789.") == "" && strings.Count(text, ".") <= 1
}

// maxDuration is a hundred years. It fits into a google.protobuf.Duration and a
// time.Duration.
const maxDuration = 100 * 365 * 24 * time.Hour

// ParseDuration parses a time such as "500ms", "10m", "1h30m" or "7d". The result is at least
// 0.
func ParseDuration(text string) (time.Duration, error) {
	word := text
	var sum time.Duration
	if days, rest, found := strings.Cut(word, "d"); found {
		n, err := strconv.ParseFloat(days, 64)
		if err != nil || !plainNumber(days) {
			return 0, badDuration(text)
		}
		if n > maxDuration.Hours()/24 {
			return 0, fmt.Errorf("%s is longer than a hundred years: write less", quote(text))
		}
		if sum, word = time.Duration(n*24*float64(time.Hour)), rest; word == "" {
			return sum, nil
		}
	}
	d, err := time.ParseDuration(word)
	switch {
	case err != nil && plainNumber(word):
		return 0, fmt.Errorf("%s has no unit: write for example %ss, %[2]sm or %[2]sh", quote(text), word)
	case err != nil:
		return 0, badDuration(text)
	case d < 0:
		return 0, fmt.Errorf("%s is below zero: write a time from 0 on", quote(text))
	case d > maxDuration-sum:
		return 0, fmt.Errorf("%s is longer than a hundred years: write less", quote(text))
	case word == "0" && sum > 0, strings.HasPrefix(word, "+"):
		return 0, badDuration(text)
	}
	return sum + d, nil
}

func badDuration(text string) error {
	return fmt.Errorf("%s is not a time: write a number and ms, s, m, h or d, for example 500ms, 10m or 1h30m", quote(text))
}

// FormatDuration formats a time as ParseDuration parses it, without empty parts.
func FormatDuration(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// quote returns a shortened text in quotes.
func quote(text string) string {
	const most = 80
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most]) + "..."
	}
	return strconv.Quote(text)
}

// maxRange bounds the ports of one range, so that a typing error does not publish
// thousands of ports.
const maxRange = 256

// ParsePorts parses a published port as docker -p does: "8080:80", "80",
// "127.0.0.1:8080:80/udp", "[::1]:8080:80", "8000-8010:8000-8010". Without a host port
// the engine chooses a free one. A range results in several mappings.
func ParsePorts(text string) ([]*agboxv1.PortMapping, error) {
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

// ParseMount parses "SOURCE:TARGET". The suffix ":rw" makes it writable.
func ParseMount(text string) (*agboxv1.MountSpec, error) {
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

// ParseCopy parses "SOURCE:TARGET".
func ParseCopy(text string) (*agboxv1.CopySpec, error) {
	source, target, options, ok := pair(text)
	if !ok || options != "" {
		return nil, fmt.Errorf("%s is not a copy: write SOURCE:TARGET with an absolute TARGET", quote(text))
	}
	return &agboxv1.CopySpec{Source: source, Target: target}, nil
}

// ParseVolume parses "NAME:TARGET". The suffix ":ro" makes it read-only.
func ParseVolume(text string) (*agboxv1.VolumeSpec, error) {
	name, target, options, ok := pair(text)
	if !ok || options != "" && options != "ro" && options != "rw" {
		return nil, fmt.Errorf("%s is not a volume: write NAME:TARGET with an absolute TARGET, and :ro behind it to make it read-only", quote(text))
	}
	return &agboxv1.VolumeSpec{Name: name, Target: target, ReadOnly: options == "ro"}, nil
}

// SplitWorkspace parses "SOURCE" or "SOURCE:TARGET".
func SplitWorkspace(text string) (source, target string) {
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

// ParseTmpfs parses "TARGET", "TARGET:SIZE" or the engine's "TARGET:size=64m,mode=1777".
func ParseTmpfs(text string) (*agboxv1.TmpfsSpec, error) {
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

// ParseUlimit parses "NAME=SOFT" or "NAME=SOFT:HARD". "unlimited" is -1.
func ParseUlimit(text string) (*agboxv1.UlimitSpec, error) {
	name, limits, ok := strings.Cut(text, "=")
	soft, hard, both := strings.Cut(limits, ":")
	u := &agboxv1.UlimitSpec{Name: name}
	var err error
	if ok {
		u.Soft, err = ParseLimit(soft)
	}
	if ok && err == nil && both {
		var h int64
		h, err = ParseLimit(hard)
		u.Hard = &h
	}
	if !ok || name == "" || err != nil {
		return nil, fmt.Errorf("%s is not a ulimit: write NAME=SOFT or NAME=SOFT:HARD, for example nofile=1024:4096", quote(text))
	}
	return u, nil
}

// ParseLimit parses a number of a ulimit. "unlimited" is -1.
func ParseLimit(text string) (int64, error) {
	if text == "unlimited" {
		return -1, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

// ParseCommand splits a command that was written as one string. It accepts only words of plain
// characters, which every shell splits in the same way.
func ParseCommand(text string) ([]string, error) {
	if strings.ContainsAny(text, "'\"\\`$|&;<>(){}*?[]#~!\n\t") {
		return nil, fmt.Errorf("%s can be read in several ways: write the command as a list, for example [\"sh\", \"-c\", %s]", quote(text), quote(text))
	}
	words := strings.Fields(text)
	if len(words) == 0 {
		return nil, errors.New("the command is empty: write it as a list of words, or leave it out")
	}
	return words, nil
}

// ShellWords splits a string into words as a shell does, with quotes and backslashes but
// without variables or operators.
func ShellWords(text string) ([]string, error) {
	var words []string
	var word strings.Builder
	inWord := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case ' ', '\t', '\n', '\r':
			if inWord {
				words = append(words, word.String())
				word.Reset()
				inWord = false
			}
		case '\'', '"':
			end, err := quoted(text[i:], &word)
			if err != nil {
				return nil, err
			}
			i += end
			inWord = true
		case '\\':
			if i++; i == len(text) {
				return nil, fmt.Errorf("%s ends with a backslash: write another character behind it, or the command as a list", quote(text))
			}
			word.WriteByte(text[i])
			inWord = true
		default:
			word.WriteByte(c)
			inWord = true
		}
	}
	if inWord {
		words = append(words, word.String())
	}
	return words, nil
}

// quoted reads a quoted part at the start of text and returns the index of its closing
// quote.
func quoted(text string, word *strings.Builder) (int, error) {
	mark := text[0]
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == mark:
			return i, nil
		case c == '\\' && mark == '"' && i+1 < len(text) && strings.IndexByte("\"\\$`\n", text[i+1]) >= 0:
			i++
			word.WriteByte(text[i])
		default:
			word.WriteByte(c)
		}
	}
	return 0, fmt.Errorf("%s opens a quote (%c) and does not close it: close it, or write the command as a list", quote(text), mark)
}

// ShellLine formats words so that a shell reads the same words.
func ShellLine(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		if w != "" && strings.Trim(w, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%") == "" {
			quoted[i] = w
			continue
		}
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
