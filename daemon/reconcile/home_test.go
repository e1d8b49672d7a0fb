package reconcile

import (
	"context"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

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
