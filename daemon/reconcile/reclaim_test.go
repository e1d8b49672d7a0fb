package reconcile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func unprivileged(o *Options) { o.Unprivileged = true }

// left is a folder that root has made in the folder of the logs. stubborn is a file that
// makes reclaimers fail.
const left, stubborn = "left", "stubborn"

// playReclaimer does what a reclaimer does: it removes folders from the mounted ones, and
// ends.
func playReclaimer(engine *runtimetest.Fake, s runtime.ContainerSpec) {
	if s.Role != runtime.RoleReclaimer {
		return
	}
	code := 0
	for _, m := range s.Mounts {
		if _, err := os.Stat(filepath.Join(m.Source, stubborn)); err == nil {
			code = 1
		} else if !m.ReadOnly {
			_ = os.RemoveAll(filepath.Join(m.Source, left))
		}
	}
	for _, c := range engine.Containers() {
		if c.Role == runtime.RoleReclaimer {
			engine.Kill(c.ID, code)
		}
	}
}

// leave makes a folder and a file in the folder of the logs, as root in the sandbox would.
func (l *life) leave(id, file string) {
	l.t.Helper()
	logs := l.loop.paths.SandboxLogs(id)
	err := errors.Join(os.Mkdir(filepath.Join(logs, left), 0o700), os.WriteFile(filepath.Join(logs, file), nil, 0o600))
	if err != nil {
		l.t.Fatal(err)
	}
}

func TestAContainerWithoutOtherRightsRemovesWhatRootHasLeft(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir(), unprivileged)
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	primary, _ := l.engine.Spec(runtime.PrimaryName("a"))
	l.accept("a", "e")
	l.leave("a", "e.stdout.log")
	release := l.engine.Hang(runtimetest.VerbWaitContainer)
	l.want(l.ledger.RequestDelete, "a")
	l.until("the reclaimer", func() bool { return l.engine.Calls(runtimetest.VerbWaitContainer) > 0 })
	spec, _ := l.engine.Spec(runtime.ReclaimerName("a"))
	release()
	l.await("a", machine.Deleted)
	l.nothingLeft()
	logs := runtime.Mount{Source: l.loop.paths.SandboxLogs("a"), Target: paths.InContainerLogs}
	switch {
	case spec.ImageID != primary.ImageID, spec.User != "0:0", spec.NetworkID != runtime.NoNetwork, !spec.Security.ReadOnlyRoot,
		!slices.Equal(spec.Security.CapDrop, []string{"ALL"}), !slices.Equal(spec.Security.CapAdd, []string{"CHOWN", "DAC_OVERRIDE", "FOWNER"}),
		len(spec.Mounts) != 2, !spec.Mounts[0].ReadOnly, spec.Mounts[1] != logs,
		!slices.Equal(spec.Cmd, []string{strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())}):
		t.Errorf("the reclaimer is %+v", spec)
	}
	if _, err := os.Stat(filepath.Join(logs.Source, "e.stdout.log")); err != nil {
		t.Errorf("the log: %v", err)
	}
}

func TestNoContainerIsMadeWhereNothingWasLeft(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir(), unprivileged)
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	if got := l.engine.Calls(runtimetest.VerbEnsureContainer); got != 1 {
		t.Errorf("%d containers were made", got)
	}
}

// A daemon that is killed in any step of the removal leaves it to the next one.
func TestADaemonThatIsKilledWhileItReclaimsLeavesItToTheNext(t *testing.T) {
	t.Parallel()
	for _, verb := range []runtimetest.Verb{
		runtimetest.VerbStopContainer, runtimetest.VerbEnsureContainer, runtimetest.VerbStartContainer,
		runtimetest.VerbWaitContainer, runtimetest.VerbRemoveContainer, runtimetest.VerbRemoveNetwork,
	} {
		for _, after := range []bool{false, true} {
			l := begin(t, runtimetest.NewFake(), t.TempDir(), unprivileged)
			l.create("a", runtimetest.FakeImage)
			l.await("a", machine.Ready)
			l.leave("a", "e.stdout.log")
			before := l.engine.Calls(verb)
			release := func() {}
			if after {
				l.engine.LoseReply(verb)
			} else {
				release = l.engine.Hang(verb)
			}
			l.want(l.ledger.RequestDelete, "a")
			l.until(string(verb), func() bool { return l.engine.Calls(verb) > before })
			l.end()
			release()
			n := l.next(unprivileged)
			n.await("a", machine.Deleted)
			n.nothingLeft()
			if _, err := os.Stat(filepath.Join(n.loop.paths.SandboxLogs("a"), left)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("killed at %s (after it: %v): the folder: %v", verb, after, err)
			}
			n.end()
		}
	}
}

func TestAReclaimerThatFailsIsSaidAndTheContainersGo(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir(), unprivileged)
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	l.leave("a", stubborn)
	l.want(l.ledger.RequestDelete, "a")
	l.until("a sentence that says what to do", func() bool {
		sb, _ := l.ledger.Sandbox("a")
		return strings.Contains(l.loop.Condition(sb).Degraded, "remove them as root with 'rm -r "+l.loop.paths.SandboxLogs("a")+"'")
	})
	l.until("the primary to be removed", func() bool { _, is := l.engine.Spec(runtime.PrimaryName("a")); return !is })
	if err := os.RemoveAll(filepath.Join(l.loop.paths.SandboxLogs("a"), left)); err != nil {
		t.Fatal(err)
	}
	l.await("a", machine.Deleted)
}

func TestAReclaimerThatTheEngineMadeLateIsRemoved(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	l.end()
	l.engine.AddForeign(runtime.ReclaimerName("a"), l.loop.identity(sb, runtime.RoleReclaimer))
	n := l.next()
	n.until("it is removed", func() bool { _, is := n.engine.Spec(runtime.ReclaimerName("a")); return !is })
}
