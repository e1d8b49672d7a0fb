package reconcile

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func (l *life) createSpec(id string, spec *agboxv1.CreateSpec) {
	l.t.Helper()
	spec.Image = runtimetest.FakeImage
	if _, err := l.ledger.Create(l.t.Context(), id, spec); err != nil {
		l.t.Fatal(err)
	}
	l.loop.Enqueue(id)
}

func (g *guests) deeds() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.did)
}

func copying(t *testing.T) *agboxv1.CreateSpec {
	return &agboxv1.CreateSpec{Copies: []*agboxv1.CopySpec{{Source: t.TempDir(), Target: "/x"}}, PostCreate: []string{"true"}}
}

func TestFilesAreThereBeforeHooksAndTheMainCommand(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	spec := copying(t)
	l.createSpec("a", spec)
	if r := l.await("a", machine.Ready); !r.Copied {
		t.Error("READY, and nothing is known of the copy")
	}
	want := []string{"copy " + spec.GetCopies()[0].GetSource(), "release", "hook"}
	if got := l.guests.deeds(); !slices.Equal(got, want) {
		t.Errorf("did %v, want %v", got, want)
	}
	l.stop("a")
	l.await("a", machine.Stopped)
	l.want(l.ledger.RequestResume, "a")
	l.await("a", machine.Ready)
	if got := l.guests.deeds(); !slices.Equal(got, append(want, "release")) {
		t.Errorf("after a restart it did %v: files are copied once, and the command is let go in every life", got)
	}
}

func TestACopyThatACrashCutShortIsMadeAgain(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	begun := make(chan struct{})
	l.guests.copy = func(ctx context.Context) error { close(begun); <-ctx.Done(); return ctx.Err() }
	l.createSpec("a", copying(t))
	<-begun
	n := l.next()
	n.await("a", machine.Ready)
	if got := n.guests.deeds(); len(got) != 3 || !strings.HasPrefix(got[0], "copy ") {
		t.Errorf("the next daemon did %v", got)
	}
}

func TestACopyThatCannotBeLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.guests.copy = func(context.Context) error {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE, "It is gone.")
	}
	l.createSpec("a", copying(t))
	r := l.await("a", machine.Failed)
	if r.ErrorReason != agboxv1.ErrorReason_HOST_PATH_UNUSABLE.String() || r.ErrorMessage != "It is gone." {
		t.Errorf("it failed by %s: %s", r.ErrorReason, r.ErrorMessage)
	}
	l.nothingLeft()
}

func TestACopyGivesWayToAWish(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	begun := make(chan struct{})
	l.guests.copy = func(ctx context.Context) error { close(begun); <-ctx.Done(); return ctx.Err() }
	l.createSpec("a", copying(t))
	<-begun
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	l.nothingLeft()
}

func TestASourceThatWasSwappedAfterTheRequestIsNotMounted(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	source := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/etc", source); err != nil {
		t.Fatal(err)
	}
	l.createSpec("a", &agboxv1.CreateSpec{Mounts: []*agboxv1.MountSpec{{Source: source, Target: "/x"}}})
	r := l.await("a", machine.Failed)
	if !strings.Contains(r.ErrorMessage, "leads by a symbolic link to /etc") {
		t.Errorf("it failed by %s", r.ErrorMessage)
	}
	l.nothingLeft()
}

func TestASourceThatBecameALinkAfterTheRequestIsNotMounted(t *testing.T) {
	t.Parallel()
	other := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(other, link); err != nil {
		t.Fatal(err)
	}
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	mounts := []*agboxv1.MountSpec{{Source: link, Target: "/x"}}
	l.createSpec("a", &agboxv1.CreateSpec{Mounts: mounts, SourcesResolved: true})
	if r := l.await("a", machine.Failed); !strings.Contains(r.ErrorMessage, "has become a symbolic link to "+other) {
		t.Errorf("it failed by %s", r.ErrorMessage)
	}
	l.nothingLeft()
	// A caller that named the link itself gets what it leads to.
	l.createSpec("b", &agboxv1.CreateSpec{Mounts: mounts})
	l.await("b", machine.Ready)
}

func TestWhatThePrimaryMounts(t *testing.T) {
	t.Parallel()
	dir, cache := t.TempDir(), filepath.Join(t.TempDir(), "caches", "npm")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	sb := ledger.Sandbox{Spec: &agboxv1.CreateSpec{
		Mounts:    []*agboxv1.MountSpec{{Source: link, Target: "/a"}, {Source: dir, Target: "/b", Writable: true}},
		Workspace: &agboxv1.WorkspaceSpec{Source: link, Mount: proto.Bool(true)},
		Envs:      map[string]string{"A": "spec"},
		ToolProjections: []*agboxv1.ToolProjection{
			{Kind: agboxv1.ProjectionKind_PROJECTION_KIND_MOUNT, Source: dir, Target: "/t", Envs: map[string]string{"A": "tool", "B": "tool"}},
			{Kind: agboxv1.ProjectionKind_PROJECTION_KIND_CACHE, Source: cache, Target: "/c"},
			{Kind: agboxv1.ProjectionKind_PROJECTION_KIND_COPY, Source: dir, Target: "~/x"},
		},
	}}
	mounts, err := l.loop.hostMounts(sb)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		got = append(got, m.Source+":"+m.Target+":"+mode)
	}
	want := []string{dir + ":/a:ro", dir + ":/b:rw", dir + ":/workspace:rw", dir + ":/t:ro", cache + ":/c:rw"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if st, err := os.Stat(cache); err != nil || st.Mode().Perm() != 0o777 || st.Mode()&os.ModeSticky == 0 {
		t.Errorf("the cache is %v, %v", st, err)
	}
	if st, err := os.Stat(filepath.Dir(cache)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder above it is %v, %v", st, err)
	}
	env := envList(primaryEnv(sb.Spec))
	if want := []string{"A=spec", "B=tool", "HOST_GID=" + strconv.Itoa(os.Getgid()), "HOST_UID=" + strconv.Itoa(os.Getuid())}; !slices.Equal(env, want) {
		t.Errorf("the environment is %v, want %v", env, want)
	}
}

// TestASandboxThatAProgramAskedForGainsAndTellsNothing: its hook has the user of that program, and
// the reason why something cannot be mounted is for the operator.
func TestASandboxThatAProgramAskedForGainsAndTellsNothing(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir(), func(o *Options) { o.Agents = idleAgents{} })
	l.createSpec("box", new(agboxv1.CreateSpec))
	l.await("box", machine.Ready)
	if _, err := l.ledger.SpawnAgent(t.Context(), ledger.NewAgent{ID: "parent", SandboxID: "box", Spec: &agboxv1.AgentSpec{Command: []string{"x"}}}); err != nil {
		t.Fatal(err)
	}
	derived := &agboxv1.DerivedSpec{Parent: "parent", Tree: "parent", User: "worker"}
	l.createSpec("child", &agboxv1.CreateSpec{Derived: derived, PostCreate: []string{"true"}})
	l.await("child", machine.Ready)
	if hooks := l.guests.hooks; len(hooks) != 1 || hooks[0].GetUser() != "worker" {
		t.Errorf("the hooks are %v", hooks)
	}
	for spec, thorough := range map[*agboxv1.CreateSpec]bool{{Derived: derived}: true, {}: false} {
		if got := l.loop.hostOf(ledger.Sandbox{Spec: spec}).Thorough; got != thorough {
			t.Errorf("a thorough search of %v: %v", spec, got)
		}
	}
	gone := filepath.Join(t.TempDir(), "gone")
	l.createSpec("other", &agboxv1.CreateSpec{Derived: derived, SourcesResolved: true, Mounts: []*agboxv1.MountSpec{{Source: gone, Target: "/data"}}})
	if r := l.await("other", machine.Failed); strings.Contains(r.ErrorMessage, gone) || !strings.Contains(r.ErrorMessage, "the log of the daemon") {
		t.Errorf("it failed with %q", r.ErrorMessage)
	}
}

// inHomeOf is a spec with a mount below the home of a user.
func inHomeOf(t *testing.T, user string) *agboxv1.CreateSpec {
	return &agboxv1.CreateSpec{User: user, Mounts: []*agboxv1.MountSpec{{Source: t.TempDir(), Target: "~/x"}}}
}

// wantMountAt requires that the primary is there with its mount, and no image reader.
func (l *life) wantMountAt(id, target string) {
	l.t.Helper()
	spec, ok := l.engine.Spec(runtime.PrimaryName(id))
	if !ok || !slices.ContainsFunc(spec.Mounts, func(m runtime.Mount) bool { return m.Target == target }) {
		l.t.Errorf("the primary of %s mounts %+v, want one at %s", id, spec.Mounts, target)
	}
	if _, left := l.engine.Spec(runtime.ImageReaderName(id)); left {
		l.t.Errorf("the image reader of %s is left", id)
	}
}

func TestTheHomeOfTheUserIsThatOfTheImage(t *testing.T) {
	engine := runtimetest.NewFake()
	engine.SetFile("/etc/passwd", "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n")
	l := begin(t, engine, t.TempDir())
	for id, c := range map[string]struct{ user, target string }{
		"name": {"agent", "/home/agent/x"}, "number": {"1000:5", "/home/agent/x"}, "root": {"", "/root/x"}, "unknown": {"77", "/x"},
	} {
		l.createSpec(id, inHomeOf(t, c.user))
		l.await(id, machine.Ready)
		l.wantMountAt(id, c.target)
	}
	l.createSpec("nobody", inHomeOf(t, "nobody"))
	if r := l.await("nobody", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_USER_NOT_FOUND.String() {
		t.Errorf("a user that is not in the image: %s, %s", r.ErrorReason, r.ErrorMessage)
	}
	l.createSpec("kernel", &agboxv1.CreateSpec{User: "77", Mounts: []*agboxv1.MountSpec{{Source: t.TempDir(), Target: "~/proc/x"}}})
	if r := l.await("kernel", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_INVALID_REQUEST.String() {
		t.Errorf("a mount over the kernel's files: %s, %s", r.ErrorReason, r.ErrorMessage)
	}
}

func TestAnImageReaderThatACrashLeftIsUsedAgainAndRemoved(t *testing.T) {
	engine := runtimetest.NewFake()
	release := engine.Hang(runtimetest.VerbReadFile)
	l := begin(t, engine, t.TempDir())
	l.createSpec("a", inHomeOf(t, ""))
	l.until("the image is read", func() bool { return engine.Calls(runtimetest.VerbReadFile) == 1 })
	l.end()
	release()
	n := l.next()
	n.await("a", machine.Ready)
	n.wantMountAt("a", "/root/x")
}

func TestAnImageReaderThatTheEngineMadeLateIsRemoved(t *testing.T) {
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createSpec("a", inHomeOf(t, ""))
	l.await("a", machine.Ready)
	sb, _ := l.ledger.Sandbox("a")
	l.engine.AddForeign(runtime.ImageReaderName("a"), l.loop.identity(sb, runtime.RoleImageReader))
	n := l.next()
	n.until("it is removed", func() bool { _, left := n.engine.Spec(runtime.ImageReaderName("a")); return !left })
	n.await("a", machine.Ready)
}

func TestAnImageThatCannotBeReadIsReadAgain(t *testing.T) {
	engine := runtimetest.NewFake()
	engine.Fail(runtimetest.VerbReadFile, context.DeadlineExceeded)
	l := begin(t, engine, t.TempDir())
	l.createSpec("a", inHomeOf(t, ""))
	l.until("two tries", func() bool { return engine.Calls(runtimetest.VerbReadFile) >= 2 })
	engine.Fail(runtimetest.VerbReadFile, nil)
	l.await("a", machine.Ready)
	l.wantMountAt("a", "/root/x")
}
