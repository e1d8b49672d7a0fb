package hostfiles

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTheWorkOfAnAgentIsAFileOfAtMost64KiB(t *testing.T) {
	h := newHost(t)
	h.write(t, "people/me/src/task.md", "fix it\n")
	h.write(t, "people/me/src/empty", "")
	h.write(t, "people/me/src/full", strings.Repeat("x", MaxWork))
	h.write(t, "people/me/src/large", strings.Repeat("x", MaxWork+1))
	h.link(t, "task.md", "people/me/src/link")
	h.link(t, h.path("people/me/.ssh/id"), "people/me/src/key")
	if err := unix.Mkfifo(h.path("people/me/src/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"task.md": "fix it\n", "link": "fix it\n", "empty": "", "full": strings.Repeat("x", MaxWork),
	} {
		if got, err := h.Work(h.path("people/me/src/"+name), false); err != nil || got == nil || string(got) != want {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	for name, want := range map[string]string{
		"large": "is larger than the 64 KiB that the work of an agent may have", "sub": "is no file, and the work of an agent is one",
		"fifo": "is neither a file nor a folder", "none": "none", "key": "programs keep credentials in .ssh",
	} {
		if got, err := h.Work(h.path("people/me/src/"+name), false); err == nil || got != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	resolved := h.Checker
	resolved.Resolved = true
	if got, err := resolved.Work(h.path("people/me/src/link"), false); err == nil || !strings.Contains(err.Error(), "it has become a symbolic link") {
		t.Errorf("a link where none may be: %d bytes, %v", len(got), err)
	}
}
