package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
)

func TestArgumentsOfACopyAreToldApart(t *testing.T) {
	for arg, want := range map[string]copyArg{
		"-":           {pipe: true},
		"box:/a/b":    {sandbox: "box", path: "/a/b"},
		"box:a":       {sandbox: "box", path: "/a"},
		"box:":        {sandbox: "box", path: "/"},
		"box:/d/.":    {sandbox: "box", path: "/d/."},
		"box:/a:b":    {sandbox: "box", path: "/a:b"},
		"file":        {path: "file"},
		"./box:a":     {path: "./box:a"},
		"/tmp/a:b":    {path: "/tmp/a:b"},
		"dir/box:a":   {path: "dir/box:a"},
		":a":          {path: ":a"},
		"..":          {path: ".."},
		".hidden:box": {path: ".hidden:box"},
	} {
		if got := parseCopyArg(arg); got != want {
			t.Errorf("%q is %+v, want %+v", arg, got, want)
		}
	}
}

func TestACopyThatCannotBeMeantIsAnErrorOfUsage(t *testing.T) {
	for _, args := range []string{"a b", "a", "box:/a", "- - box:/a", "a - box:/a", "a b -"} {
		code, stdout, stderr := agbox(t, "/nowhere/d.sock", append([]string{"cp"}, strings.Fields(args)...)...)
		if code != codeUsage || stdout != "" || !strings.Contains(stderr, ".\n") {
			t.Errorf("cp %s: exit code %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

func TestTheBarOfACopyIsOneLineOnATerminalAndNothingElsewhere(t *testing.T) {
	for _, width := range []int{0, 40} {
		c := newCLI(t, "")
		now := theTime
		c.app.now = func() time.Time { return now }
		c.app.width = func() int { return width }
		bar := newCopyBar(c.app, false)
		bar.begin(strings.Repeat("a very long name\x1b[31m ", 10))
		for range 100 {
			now = now.Add(10 * time.Millisecond)
			bar.add(1, 1_500_000, false)
		}
		bar.clear()
		bar.end(client.Copied{Files: 100, Bytes: 150_000_000})
		got := c.errs.String()
		if width == 0 {
			if got != "" {
				t.Errorf("without a terminal it writes %q", got)
			}
			continue
		}
		lines := strings.Split(got, "\r\x1b[K")
		if len(lines) > 13 { // once in 100 ms
			t.Errorf("it was painted %d times", len(lines))
		}
		for _, line := range lines[1 : len(lines)-1] {
			if len([]rune(line)) >= width || strings.Contains(line, "\x1b") || strings.Contains(line, "\n") {
				t.Errorf("the line %q", line)
			}
		}
		if last := lines[len(lines)-1]; last != "agbox: Copied 100 files, 150 MB, in 1.0 s (150 MB/s).\n" {
			t.Errorf("at the end it says %q", last)
		}
	}
}

func TestBytesAreCountedForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 12_345: "12.35 kB", 999_999: "1000 kB", 1 << 30: "1.074 GB", 1<<63 - 1: "9.223 EB"} {
		if got := byteCount(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}

// TestACopyTellsWhatWasNotCopied: after the first copy that fails because the daemon is gone, no
// further one is tried, and each of the others is named.
func TestACopyTellsWhatWasNotCopied(t *testing.T) {
	c := newCLI(t, "")
	var tried []string
	err := c.app.eachCopy(t.Context(), []string{"a", "b", "c", "d"}, func(arg string) error {
		tried = append(tried, arg)
		if arg == "b" {
			return &client.Error{Code: codes.Unavailable, Message: "The daemon is gone."}
		}
		return nil
	})
	if exitCode := exitStatus(0); !errors.As(err, &exitCode) || exitCode != codeNoDaemon {
		t.Errorf("it ends with %v", err)
	}
	if !slices.Equal(tried, []string{"a", "b"}) {
		t.Errorf("it tried to copy %q", tried)
	}
	want := "agbox: b was not copied, or only in part. The daemon is gone.\nagbox: c was not copied.\nagbox: d was not copied.\n"
	if got := c.errs.String(); got != want {
		t.Errorf("it says %q; want %q", got, want)
	}
}
