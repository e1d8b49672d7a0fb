package runtimetest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"

	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/runtime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFakeConforms(t *testing.T) {
	RunConformance(t, func(*testing.T) Harness {
		f := NewFake()
		return Harness{
			Engine:    f,
			InstallID: ids.New(),
			Image:     FakeImage,
			Foreign:   func(_ *testing.T, name string, claimed runtime.Identity) string { return f.AddForeign(name, claimed) },
			ForeignNetwork: func(_ *testing.T, name string, claimed runtime.Identity) (string, bool) {
				return f.AddForeignNetwork(name, claimed), true
			},
			ClaimingImage: func(*testing.T, runtime.Identity) string {
				return f.AddImage("claiming:latest", runtime.Image{}).ID // the fake's images have no labels
			},
			RemoveImage: func(*testing.T, string) {},
			Kill:        func(_ *testing.T, id string) { f.Kill(id, killed) },
		}
	})
}

func newFakeSubject() (*Fake, *subject) {
	f := NewFake()
	return f, newSubject(Harness{Engine: f, InstallID: ids.New(), Image: FakeImage})
}

func TestFailedVerbHasNoEffect(t *testing.T) {
	f, s := newFakeSubject()
	broken := errors.New("broken")
	f.Fail(VerbEnsureNetwork, broken)
	if _, err := f.EnsureNetwork(t.Context(), s.networkSpec()); !errors.Is(err, broken) {
		t.Errorf("the error is %v", err)
	}
	if len(f.Networks()) != 0 {
		t.Errorf("networks %v were made", f.Networks())
	}
	f.Fail(VerbEnsureNetwork, nil)
	s.network(t)
	if calls := f.Calls(VerbEnsureNetwork); calls != 2 {
		t.Errorf("%d calls were counted, want 2", calls)
	}
}

func TestLostReplyHasItsEffectOnce(t *testing.T) {
	f, s := newFakeSubject()
	f.LoseReply(VerbEnsureNetwork)
	_, err := f.EnsureNetwork(t.Context(), s.networkSpec())
	wantClass(t, err, errdefs.ErrUnavailable)
	s.network(t)
	if len(f.Networks()) != 1 {
		t.Errorf("networks are %v, want one", f.Networks())
	}
}

func TestHangingVerbEndsWithItsContextOrGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := newFakeSubject()
		release := f.Hang(VerbInfo)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		_, err := f.Info(ctx)
		wantClass(t, err, errdefs.ErrUnavailable)

		answered := make(chan error, 1)
		go func() {
			_, err := f.Info(t.Context())
			answered <- err
		}()
		synctest.Wait()
		if len(answered) != 0 {
			t.Error("the call did not hang")
		}
		release()
		must(t, <-answered)
	})
}

func TestHooksSeeEachRunOfAContainerOnce(t *testing.T) {
	f, s := newFakeSubject()
	var seen []string
	f.OnStart = func(spec runtime.ContainerSpec) { seen = append(seen, "start "+spec.Name) }
	f.OnEnd = func(spec runtime.ContainerSpec) { seen = append(seen, "end "+spec.Name) }
	id, spec := s.created(t)
	for _, end := range []func(){
		func() { f.Kill(id, 3) },
		func() { must(t, f.StopContainer(t.Context(), id, time.Second)) },
		func() { f.KillOutOfMemory(id) },
		func() { f.Restart(false) },
		func() { must(t, f.RemoveContainer(t.Context(), id)) },
	} {
		must(t, f.StartContainer(t.Context(), id))
		must(t, f.StartContainer(t.Context(), id))
		end()
		if want := []string{"start " + spec.Name, "end " + spec.Name}; !slices.Equal(seen, want) {
			t.Errorf("the hooks saw %v, want %v", seen, want)
		}
		seen = nil
	}
}

func TestLiveRestoreKeepsContainersAndBreaksStreams(t *testing.T) {
	f, s := newFakeSubject()
	id := s.started(t)
	stream := s.listen(t, time.Time{})
	f.GoDown()
	wantClass(t, <-stream.ended, errdefs.ErrUnavailable)
	_, err := f.InspectContainer(t.Context(), id)
	wantClass(t, err, errdefs.ErrUnavailable)
	f.ComeBack(true)
	if state := s.inspect(t, id).State; state != runtime.StateRunning {
		t.Errorf("the container is %q after a live restore", state)
	}
	f.Restart(false)
	if seen := s.inspect(t, id); seen.State != runtime.StateExited || seen.ExitCode != killed {
		t.Errorf("after a restart the container is %+v, want exited with %d", seen, killed)
	}
}

func TestOutOfMemoryIsReported(t *testing.T) {
	f, s := newFakeSubject()
	id := s.started(t)
	stream := s.listen(t, time.Time{})
	f.KillOutOfMemory(id)
	stream.await(t, "oom")
	stream.await(t, "die")
	if seen := s.inspect(t, id); !seen.OOMKilled || seen.ExitCode != killed {
		t.Errorf("the container is %+v, want killed by the OOM killer", seen)
	}
}

func TestHealthAndSpecAreShown(t *testing.T) {
	f, s := newFakeSubject()
	id := s.started(t)
	f.SetHealth(id, "unhealthy")
	if health := s.inspect(t, id).Health; health != "unhealthy" {
		t.Errorf("health is %q", health)
	}
	if spec, ok := f.Spec(runtime.PrimaryName(s.sandboxID)); !ok || spec.Identity != s.identity(runtime.RolePrimary) {
		t.Errorf("the spec is %+v, %v", spec, ok)
	}
	if _, ok := f.Spec("nobody"); ok {
		t.Error("a container that does not exist has a spec")
	}
}
