package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// pushedFiles is how many files a round of a pusher changes.
const pushedFiles = 40

// pusher is a folder that only its user changes, in rounds, while agbox sync brings that to
// the sandbox.
type pusher struct {
	in  *harness.Install
	dir string
}

// edit makes the user's changes of a round: contents, types, additions and removals.
func (p pusher) edit(t *testing.T, round int) {
	t.Helper()
	for n := range pushedFiles {
		name := filepath.Join(p.dir, fmt.Sprintf("f%02d", n))
		text := fmt.Sprintf("round %d\n", round)
		if err := os.RemoveAll(name); err != nil {
			t.Fatal(err)
		}
		var err error
		switch (n + round) % 8 {
		case 0:
			err = os.Symlink(text, name)
		case 1: // removed
		default:
			err = os.WriteFile(name, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// inStep checks that another sync has nothing to decide, and that the sandbox has the
// folder's files.
func (p pusher) inStep(t *testing.T, when string) {
	t.Helper()
	if r := p.in.Agbox(t, "sync", "demo"); r.Code != 0 || strings.Contains(r.Stdout, "!!") || strings.Contains(r.Stdout, "<-") {
		t.Fatalf("%s: sync ended with %d: %s%s", when, r.Code, r.Stdout, r.Stderr)
	}
	var want strings.Builder
	for n := range pushedFiles {
		name := fmt.Sprintf("f%02d", n)
		text, err := os.ReadFile(filepath.Join(p.dir, name))
		if to, link := os.Readlink(filepath.Join(p.dir, name)); link == nil {
			text, err = []byte(to), nil
		}
		if err == nil {
			fmt.Fprintf(&want, "%s %s", name, text)
		}
	}
	got := p.in.Agbox(t, "exec", "demo", "--", "sh", "-c", `cd /workspace; for f in $(ls -A); do printf "$f "; if [ -L $f ]; then readlink -n $f; else cat $f; fi; done`).Want(t, 0)
	harness.WantSame(t, when+": the sandbox", got.Stdout, want.String())
	p.in.Agbox(t, "diff", "demo", "--exit-code").Want(t, 0)
}

// Only the user changes files, so there is nothing to be in conflict.
func TestASyncThatLosesItsClientOrDaemonMakesNoConflicts(t *testing.T) {
	t.Parallel()
	row := Row(t, 61, "SIGKILL of \"agbox sync\", and of the daemon, while files are pushed", 0)
	w := newWitness(t, harness.New(t))
	p := pusher{w.in, filepath.Join(w.in.Home, "project")}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.edit(t, 0)
	w.box(t, "demo", "--workspace", p.dir)
	round, kills := 0, 0
	for _, at := range []string{"f00", "f05", "f17", "f30"} {
		for _, victim := range []string{"agbox sync", "agboxd"} {
			round++
			p.edit(t, round)
			s := w.in.Start(t, "sync", "demo")
			s.AwaitOutput(t, " "+at+"\n")
			if victim == "agboxd" {
				w.in.KillDaemon(t)
			} else {
				s.Signal(t, syscall.SIGKILL)
			}
			round++
			p.edit(t, round)
			<-s.Ended()
			if told := s.Stdout.String(); victim == "agboxd" && strings.Contains(told, "!!") {
				t.Errorf("the sync that has lost its daemon tells of conflicts:\n%s", told)
			}
			kills++
			p.inStep(t, fmt.Sprintf("after a kill of %s at %s", victim, at))
		}
	}
	row.Ran(kills)
	w.check(t)
}
