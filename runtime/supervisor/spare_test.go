package supervisor_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// spares counts the open files of the supervisor in its log directory that have no name.
func (b *box) spares() int {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", b.cmd.Process.Pid))
	n := 0
	for _, link := range links {
		target, err := os.Readlink(link)
		if err == nil && strings.HasPrefix(target, filepath.Join(b.dir, "logs")+"/") && strings.HasSuffix(target, " (deleted)") {
			n++
		}
	}
	return n
}

func (b *box) logFiles() int {
	entries, err := os.ReadDir(filepath.Join(b.dir, "logs"))
	b.must(err)
	return len(entries)
}

func TestSpareFilesAreKeptReadyAndNeverSeen(t *testing.T) {
	const full, execs = 16, 6 // the execs need more than there are
	b := newBox(t)
	isFull := func() bool { return b.spares() == full }
	eventually(t, "the spares are there", isFull)
	if n := b.logFiles(); n != 0 {
		t.Errorf("%d files before any exec", n)
	}
	c, gate := b.dial(), b.fifo("gate")
	for i := range execs {
		b.start(c, sh(fmt.Sprint("e", i), "read x < "+gate.Name()+"; echo out"))
	}
	// They are also made again while the execs that took them still run.
	eventually(t, "there are enough spares for two", func() bool { return b.spares() >= full/2 })
	for range execs {
		if _, err := gate.WriteString("go\n"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range execs {
		id := fmt.Sprint("e", i)
		if r := b.end(id); r.GetExitCode() != 0 || b.stdout(id) != "out\n" {
			t.Errorf("%v, output %q", r, b.stdout(id))
		}
	}
	eventually(t, "the spares are there again", isFull)
	b.start(c, request("none", "no such command"))
	eventually(t, "it has taken files", func() bool { return b.logFiles() == 4*(execs+1) })
	eventually(t, "those of an exec without a process are there again", isFull)
	if n := b.logFiles(); n != 4*(execs+1) {
		t.Errorf("%d files of %d execs", n, execs+1)
	}
	b.stop()
	if n := b.logFiles(); n != 4*(execs+1) {
		t.Errorf("%d files of %d execs after the stop", n, execs+1)
	}
}
