package document

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestSizesAreBinary(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "1b": 1, "1k": 1024, "1K": 1024, "1kb": 1024, "1KiB": 1024, "512m": 512 << 20, "1.5g": 3 << 29, "4G": 4 << 30, "2t": 2 << 40, "1 g": 1 << 30, "0.5k": 512,
	} {
		if got, err := ParseBytes(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "g", "-1", "+1", "1e3", "1.2.3", "4gg", "4x", "bk", "1 bb", "NaN", "Inf", "0x10", "9999999999t", "1kk", "1,5g"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestProcessorsMayBeParts(t *testing.T) {
	for text, want := range map[string]int64{"1": 1e9, "1.5": 15e8, ".5": 5e8, "0.000000001": 1, "32": 32e9} {
		if got, err := ParseCPUs(text); err != nil || got != want {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "0", "0.0", "-1", "two", "1e3", ".", "1.0000000001", "1.2.3", "99999999", "100%"} {
		if got, err := ParseCPUs(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestDurationsAreRead(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "10m": 10 * time.Minute, "1h30m": 90 * time.Minute, "7d": 168 * time.Hour, "1d12h": 36 * time.Hour, "0": 0, "1.5s": 1500 * time.Millisecond, "1.5d": 36 * time.Hour,
	} {
		got, err := ParseDuration(text)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
		if again, err := ParseDuration(FormatDuration(got)); err != nil || again != got {
			t.Errorf("%s is written as %s and read as %v", text, FormatDuration(got), again)
		}
	}
	for _, text := range []string{"", "10", "-5m", "soon", "d", "1d0", "+1s", "1h2d", "99999999d", "2562047h", "1x", "1d1d"} {
		if got, err := ParseDuration(text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestPortsAreReadAsTheEngineHasThem(t *testing.T) {
	for text, want := range map[string]string{
		"80": ":0:80/TCP", "8080:80": ":8080:80/TCP", "127.0.0.1:8080:80/udp": "127.0.0.1:8080:80/UDP", "[::1]:8080:80": "::1:8080:80/TCP",
		"127.0.0.1::80": "127.0.0.1:0:80/TCP", "0:80": ":0:80/TCP", "1-2:3-4/sctp": ":1:3/SCTP :2:4/SCTP", "3-4": ":0:3/TCP :0:4/TCP", "[::]:80": ":::0:80/TCP", "80/UDP": ":0:80/UDP",
	} {
		ports, err := ParsePorts(text)
		var got []string
		for _, p := range ports {
			got = append(got, fmt.Sprintf("%s:%d:%d/%s", p.GetHostIp(), p.GetHostPort(), p.GetContainerPort(), strings.TrimPrefix(p.GetProtocol().String(), "PORT_PROTOCOL_")))
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "http", "0", "80:", ":80:80:80", "70000", "1:2:3", "localhost:1:2", "80/icmp", "80/", "1-2:3", "5-4", "1-1000", "[::1:80", "-1", "80:80/tcp/udp", "[x]:1:2"} {
		if ports, err := ParsePorts(text); err == nil {
			t.Errorf("%q: %v", text, ports)
		}
	}
}

func TestShortFormsAreRead(t *testing.T) {
	show := func(v any, err error) string {
		if err != nil {
			return "error"
		}
		return strings.Join(strings.Fields(fmt.Sprint(v)), " ")
	}
	for _, c := range []struct{ got, want string }{
		{show(ParseMount("./a:/b")), `source:"./a" target:"/b"`},
		{show(ParseMount("/a:b:/c:rw")), `source:"/a:b" target:"/c" writable:true`},
		{show(ParseMount("/a:/b:ro")), `source:"/a" target:"/b"`},
		{show(ParseMount("~/a:~/b:rw")), `source:"~/a" target:"~/b" writable:true`},
		{show(ParseMount("/a:~")), `source:"/a" target:"~"`},
		{show(ParseMount("/a:~b")), "error"},
		{show(ParseMount("/a:/b:zz")), "error"},
		{show(ParseMount("/a")), "error"},
		{show(ParseMount("a:b")), "error"},
		{show(ParseMount(":/b")), "error"},
		{show(ParseCopy("a:/b")), `source:"a" target:"/b"`},
		{show(ParseCopy("a:/b:rw")), "error"},
		{show(ParseVolume("data:/b:ro")), `name:"data" target:"/b" read_only:true`},
		{show(ParseVolume("data")), "error"},
		{show(ParseTmpfs("/t")), `target:"/t"`},
		{show(ParseTmpfs("/t:64m")), `target:"/t" size:"64m"`},
		{show(ParseTmpfs("/t:size=64m,mode=1777")), `target:"/t" size:"64m" mode:"1777"`},
		{show(ParseTmpfs("/t:uid=0")), "error"},
		{show(ParseTmpfs("")), "error"},
		{show(ParseUlimit("nofile=1:2")), `name:"nofile" soft:1 hard:2`},
		{show(ParseUlimit("nofile=unlimited")), `name:"nofile" soft:-1`},
		{show(ParseUlimit("nofile")), "error"},
		{show(ParseUlimit("nofile=x")), "error"},
		{show(ParseUlimit("=1")), "error"},
		{show(ParseCommand("sleep 10")), "[sleep 10]"},
		{show(ParseCommand("echo $A")), "error"},
		{show(ParseCommand("echo 'a b'")), "error"},
		{show(ParseCommand("  ")), "error"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
}

func TestShellWordsAreThoseOfAShell(t *testing.T) {
	for text, want := range map[string][]string{
		"a b": {"a", "b"}, " a  'b c' ": {"a", "b c"}, `a"b 'c'"d`: {"ab 'c'd"}, `a\ b`: {"a b"}, `"a\"b\x"`: {`a"b\x`}, `''`: {""}, "": nil, "a\nb": {"a", "b"}, `'a\'`: {`a\`},
	} {
		got, err := ShellWords(text)
		if err != nil || fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
			t.Errorf("%s: %q, %v", text, got, err)
		}
		if again, err := ShellWords(ShellLine(got)); err != nil || fmt.Sprintf("%q", again) != fmt.Sprintf("%q", got) {
			t.Errorf("%q is written as %s and read as %q", got, ShellLine(got), again)
		}
	}
	for _, text := range []string{"'a", `"a`, `a\`} {
		if got, err := ShellWords(text); err == nil {
			t.Errorf("%s: %q", text, got)
		}
	}
}
