package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// pusher is a folder that only its user changes, so many files in each round, while agbox sync
// brings that to the sandbox.
type pusher struct {
	in    *harness.Install
	dir   string
	files int
}

// newPusher makes a folder and a sandbox with a copy of it.
func newPusher(t *testing.T, w *witness, files int) pusher {
	t.Helper()
	p := pusher{w.in, filepath.Join(w.in.Home, "project"), files}
	if err := os.Mkdir(p.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	p.edit(t, 0)
	w.box(t, "demo", "--workspace", p.dir)
	return p
}

// edit makes the user's changes of a round: contents, types, additions and removals.
func (p pusher) edit(t *testing.T, round int) {
	t.Helper()
	for n := range p.files {
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
	for n := range p.files {
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
	p := newPusher(t, w, 40)
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

// A call that may run only once is not repeated over a kill of the daemon: the next round of the
// same sync finds out what became of it, and so it is no conflict.
func TestKillAtManyBoundariesOfASync(t *testing.T) {
	t.Parallel()
	row := Row(t, 61, "SIGKILL of the daemon at many boundaries of \"agbox sync\"", 0)
	w := newWitness(t, harness.New(t))
	p := newPusher(t, w, 8)
	kills, calls := sweep(t, w, operation{
		name:    "sync",
		step:    5, // of about 90, at several seconds each
		prepare: func(t *testing.T, n int) { p.edit(t, n) },
		run: func(ctx context.Context, _ int) error {
			var stdout, stderr bytes.Buffer
			cmd := w.in.Command(ctx, "agbox", "sync", "demo")
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			if err := cmd.Run(); err != nil || strings.Contains(stdout.String(), "!!") {
				return fmt.Errorf("stdout %q, stderr %q: %w", &stdout, &stderr, err)
			}
			return nil
		},
		verify: func(t *testing.T, k kill) {
			p.inStep(t, fmt.Sprintf("after a kill at boundary %d, before %q", k.n, k.before))
		},
	})
	row.Ran(kills)
	row.Note("sync: before %s", calls)
	w.check(t)
}

// The sync ends with an error if its daemon does not come back, and the next one knows only from
// the disk what was pushed.
func TestASyncThatLosesItsDaemonForGoodRemembersWhatItHasPushed(t *testing.T) {
	t.Parallel()
	row := Row(t, 61, "SIGKILL of the daemon before the base has what \"agbox sync\" has pushed, and no other daemon", 1)
	w := newWitness(t, harness.New(t))
	p := newPusher(t, w, 8)
	p.edit(t, 1)
	tr := traceAndKill(t, w.in.Status(t).PID, 1, filepath.Join(w.in.Home, "data", "guest", w.in.SandboxID(t, "demo"), "base"))
	settings := filepath.Join(w.in.Home, "config", "agboxd.yaml")
	err := errors.Join(os.MkdirAll(filepath.Dir(settings), 0o755), os.WriteFile(settings, []byte("resync: never\n"), 0o600))
	if err != nil { // else the next daemon does not start
		t.Fatal(err)
	}
	if r := w.in.Agbox(t, "sync", "demo"); r.Code == 0 || !strings.Contains(r.Stdout, "-> ") {
		t.Errorf("the sync without a daemon ended with %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if call := tr.killed(); call == "" {
		t.Fatal("the daemon was not killed")
	}
	if err := os.Remove(settings); err != nil {
		t.Fatal(err)
	}
	w.in.Must(t, "daemon", "start")
	p.edit(t, 2)
	row.Ran(1)
	p.inStep(t, "with another daemon")
	w.check(t)
}
