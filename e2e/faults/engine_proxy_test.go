package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/agbox/agbox/e2e/internal/engine"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

func hangAll(*http.Request) engine.Fault { return engine.Hang }

func TestAnEngineThatHangsLeavesCommandsAndReadsAsTheyAre(t *testing.T) {
	t.Parallel()
	r := Row(t, 15, "dockerd frozen with its socket open: reads from memory, wishes kept, all done after it", 1)
	p, in := private(t)
	w := newWitness(t, in)
	box, gone := w.box(t), w.box(t)
	through := steady(box)
	if err := w.start(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	p.Freeze(t)
	awaitDegraded(t, w.c, box)

	begun := time.Now()
	in.Must(t, "ls")
	r.Note("agbox ls while dockerd hangs: %d ms", time.Since(begun).Milliseconds())
	begun = time.Now()
	shown, err := w.c.GetSandbox(harness.Bounded(t), box)
	if err != nil || len(shown.GetContainers()) != 1 || !shown.GetSandbox().GetDegraded() {
		t.Errorf("inspect gives %v (%v), want the container as it was seen last, and that it may be stale", shown, err)
	}
	r.Note("agbox inspect while dockerd hangs: %d ms", time.Since(begun).Milliseconds())
	wantRun(t, in, box)
	in.Agbox(t, "create", "--image", harness.ImageBusybox).Want(t, 6)
	if err := w.c.DeleteSandbox(harness.Bounded(t), gone); err != nil {
		t.Errorf("a removal is refused while the engine hangs: %v", err)
	}

	p.Thaw(t)
	awaitWell(t, w.c, box)
	if err := w.c.WaitDeleted(harness.Bounded(t), gone); err != nil {
		t.Error(err)
	}
	w.holds(gone, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	w.check(t)
}

func TestRequestsThatAreNeverAnsweredAreGivenUp(t *testing.T) {
	t.Parallel()
	Row(t, 15, "engine takes requests and never answers: deadlines, then another try", 1)
	proxy, in := proxied(t, "--resync", "1s")
	w := newWitness(t, in)
	box, gone := w.box(t), w.box(t)
	proxy.Choose(hangAll)
	if err := w.c.DeleteSandbox(harness.Bounded(t), gone); err != nil {
		t.Fatal(err)
	}
	awaitDegraded(t, w.c, box)
	wantRun(t, in, box)
	proxy.Choose(nil) // requests that hang continue to hang
	if err := w.c.WaitDeleted(harness.Bounded(t), gone); err != nil {
		t.Error(err)
	}
	w.holds(gone, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	awaitWell(t, w.c, box)
	w.box(t)
	w.check(t)
}

// once applies a fault to the first request that matches each pattern.
type once struct {
	mu   sync.Mutex // guards left
	left map[string]engine.Fault
}

func (o *once) choose(r *http.Request) engine.Fault {
	o.mu.Lock()
	defer o.mu.Unlock()
	for pattern, fault := range o.left {
		method, path, _ := strings.Cut(pattern, " ")
		if engine.Matches(r, method, path) {
			delete(o.left, pattern)
			return fault
		}
	}
	return engine.Pass
}

func (o *once) unmet() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var patterns []string
	for pattern := range o.left {
		patterns = append(patterns, pattern)
	}
	return patterns
}

// mutations are the requests that change something in the engine.
var mutations = []string{
	"POST /networks/create", "POST /containers/create", "POST /containers/*/start",
	"POST /containers/*/stop", "DELETE /containers/*", "DELETE /networks/*",
}

func TestRepliesThatAreLostOrCutMakeNothingTwice(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		words string
		fault engine.Fault
		on    []string
	}{
		{"reply lost after success", engine.LoseReply, mutations},
		{"request lost on its way", engine.LoseRequest, mutations},
		{"reply cut in the middle", engine.CutBody, []string{"POST /networks/create", "POST /containers/create"}},
		{"reply of a look cut in the middle", engine.CutBody, []string{"GET /containers/json", "GET /networks", "GET /containers/*/json", "GET /images/*/*/json"}},
		{"engine answers 503", engine.Refuse, mutations},
	} {
		t.Run(c.words, func(t *testing.T) {
			t.Parallel()
			Row(t, 16, c.words+": looked at before the next try", len(c.on))
			proxy, in := proxied(t, "--resync", "1s")
			w := newWitness(t, in)
			faults := &once{left: make(map[string]engine.Fault)}
			for _, pattern := range c.on {
				faults.left[pattern] = c.fault
			}
			proxy.Choose(faults.choose)
			box := w.box(t)
			if inv := in.Inventory(t); len(inv.Containers) != 1 || len(inv.Networks) != 1 {
				t.Errorf("the engine has %d containers and %d networks, want one of each", len(inv.Containers), len(inv.Networks))
			}
			in.Must(t, "stop", box)
			in.Must(t, "start", box)
			wantRun(t, in, box)
			in.Must(t, "inspect", box)
			w.check(t)
			in.Must(t, "rm", "--wait", box)
			w.holds(box, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
			w.check(t)
			if left := faults.unmet(); len(left) > 0 {
				t.Errorf("no request met the fault on %v", left)
			}
		})
	}
}

func TestAnEngineOfAnotherVersionIsAskedAnew(t *testing.T) {
	t.Parallel()
	Row(t, 17, "engine replaced by an older, then by a newer one, between two calls", 4)
	proxy, in := proxied(t, "--resync", "1s")
	w := newWitness(t, in)
	box := w.box(t)
	speaks := func() string {
		pong, err := w.c.Ping(harness.Bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		return pong.GetEngine().GetApiVersion()
	}
	newest := speaks()
	for _, version := range []string{"1.40", "", "1.39", ""} {
		proxy.SetVersion(version)
		w.box(t) // refused with the old version, repeated with the new one
		proxy.CutStreams()
		want := version
		if want == "" {
			want = newest
		}
		harness.Eventually(t, "the daemon says that it speaks "+want, func() bool { return speaks() == want })
		wantRun(t, in, box)
	}
	w.check(t)
}

func TestWhatHappensWithoutAnEventStreamIsFoundWhenItIsBack(t *testing.T) {
	t.Parallel()
	const rounds = 5
	Row(t, 18, "event stream cut: full look, new stream, no gap", rounds)
	// Without the periodic look, only the end of the stream can trigger one.
	proxy, in := proxied(t, "--resync", "1h")
	w := newWitness(t, in)
	box := w.box(t)
	for range rounds {
		victim := w.box(t)
		id := primaryOf(t, in, victim).ID
		proxy.Choose(func(r *http.Request) engine.Fault {
			if engine.Path(r) == "/events" {
				return engine.LoseRequest
			}
			return engine.Pass
		})
		proxy.CutStreams()
		if err := harness.DockerAPI.ContainerPause(harness.Bounded(t), id); err != nil {
			t.Fatal(err)
		}
		if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), id, "KILL"); err != nil {
			t.Fatal(err)
		}
		proxy.Choose(nil)
		awaitState(t, w.c, victim, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
		w.holds(victim, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
		harness.Eventually(t, "there is an event stream again", func() bool { return proxy.Streams() == 1 })
	}
	wantRun(t, in, box)
	w.check(t)
}

// eventLine is an event of a container as an engine writes it.
func eventLine(t *testing.T, c runtime.Container, action string, at time.Time) []byte {
	t.Helper()
	line, err := json.Marshal(map[string]any{
		"Type": "container", "Action": action, "status": action, "id": c.ID, "from": harness.ImageBusybox,
		"Actor": map[string]any{"ID": c.ID, "Attributes": map[string]string{
			"agbox.install-id": c.InstallID, "agbox.sandbox-id": c.SandboxID, "agbox.nonce": c.Nonce,
			"agbox.role": string(c.Role), "agbox.service": c.Service, "name": c.Name,
		}},
		"time": at.Unix(), "timeNano": at.UnixNano(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return line
}

func TestABurstOfEventsIsTakenWhileEverythingElseHangs(t *testing.T) {
	t.Parallel()
	const burst = 10_000
	r := Row(t, 19, "10,000 events of a sandbox while the engine answers nothing else", 1)
	proxy, in := proxied(t, "--resync", "1s")
	w := newWitness(t, in)
	box := w.box(t)
	primary := primaryOf(t, in, box)
	through := steady(box)
	if err := w.start(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "there is an event stream", func() bool { return proxy.Streams() == 1 })
	proxy.Choose(hangAll) // a reader that waited for a look would wait forever
	lines := make([][]byte, burst)
	for i := range lines {
		lines[i] = eventLine(t, primary, []string{"die", "pause", "rename", "destroy"}[i%4], time.Now())
	}
	slowest, err := proxy.Send(harness.Bounded(t), lines...)
	if err != nil {
		t.Errorf("the burst was not taken: %v", err)
	}
	r.Note("the slowest of %d events was taken after %v; an engine drops a reader's events after 100ms", burst, slowest.Round(time.Microsecond))
	wantRun(t, in, box)
	in.Must(t, "ls")
	proxy.Choose(nil)
	proxy.DropHeld()
	awaitWell(t, w.c, box)
	w.check(t)
}

func TestDuplicateLateAndReorderedEventsChangeNothing(t *testing.T) {
	t.Parallel()
	const times = 100
	Row(t, 20, "every kind of event, old, twice and in the wrong order, of sandboxes that run, are stopped or gone", times)
	proxy, in := proxied(t, "--resync", "1h")
	w := newWitness(t, in)
	runs, stopped, deleted := w.box(t), w.box(t), w.box(t)
	var known []runtime.Container
	for _, box := range []string{runs, stopped, deleted} {
		known = append(known, primaryOf(t, in, box))
	}
	in.Must(t, "stop", stopped)
	w.holds(stopped, agboxv1.SandboxState_SANDBOX_STATE_STOPPED)
	in.Must(t, "rm", "--wait", deleted)
	w.holds(deleted, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	wantRun(t, in, runs)
	harness.Eventually(t, "there is an event stream", func() bool { return proxy.Streams() == 1 })
	before := map[string]uint64{runs: listed(t, w.c, runs).GetLastEventSequence(), stopped: listed(t, w.c, stopped).GetLastEventSequence()}
	asked := len(proxy.Requests())

	var lines [][]byte
	for i := range times {
		for _, c := range known {
			for _, action := range []string{"create", "start", "die", "stop", "pause", "unpause", "oom", "rename", "destroy", "health_status: unhealthy"} {
				lines = append(lines, eventLine(t, c, action, time.Now().Add(-time.Duration(i)*time.Minute)))
			}
		}
	}
	slices.Reverse(lines)
	lines = append(lines, []byte(`{"Type":"container","Action":"die","Actor":{}}`), []byte(`{}`))
	if _, err := proxy.Send(harness.Bounded(t), lines...); err != nil {
		t.Fatal(err)
	}
	// When a later change is visible, the events have been handled.
	last := w.box(t)
	id := primaryOf(t, in, last).ID
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), id, "KILL"); err != nil {
		t.Fatal(err)
	}
	awaitState(t, w.c, last, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	w.holds(last, agboxv1.SandboxState_SANDBOX_STATE_FAILED)

	for box, sequence := range before {
		if now := listed(t, w.c, box).GetLastEventSequence(); now != sequence {
			t.Errorf("sandbox %s had %d events and has %d", box, sequence, now)
		}
	}
	for _, request := range proxy.Requests()[asked:] {
		for _, c := range known {
			if !strings.HasPrefix(request, "GET ") && strings.Contains(request, c.ID) {
				t.Errorf("the events made the daemon ask the engine for %s", request)
			}
		}
	}
	wantRun(t, in, runs)
	w.check(t)
}

func TestAFloodOfEventsOfAForeignContainerHidesNothing(t *testing.T) {
	t.Parallel()
	const renames, containers = 10_000, 4
	r := Row(t, 19, "foreign containers with our labels renamed 10,000 times", 1)
	p, in := private(t)
	w := newWitness(t, in)
	box, victim := w.box(t), w.box(t)
	spoofed := primaryOf(t, in, box).Identity
	labels := map[string]string{
		"agbox.install-id": spoofed.InstallID, "agbox.sandbox-id": spoofed.SandboxID, "agbox.nonce": "guessed",
		"agbox.role": "primary", "agbox.service": "",
	}
	pid := inspectIn(t, p.API(), primaryOf(t, in, victim).ID).Pid
	through := steady(box)
	if err := w.start(t.Context(), through); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	var flood sync.WaitGroup
	var tidy []func()
	for n := range containers {
		id, remove := strangeIn(t, p, fmt.Sprintf("flood-%d", n), labels)
		tidy = append(tidy, remove)
		flood.Go(func() {
			for i := range renames / containers {
				if err := p.API().ContainerRename(t.Context(), id, fmt.Sprintf("flood-%d-%d", n, i%2)); err != nil {
					t.Errorf("rename: %v", err)
					return
				}
			}
		})
	}
	killFromOutside(t, pid)
	flood.Wait()
	r.Note("10,000 renames took %.1f s", time.Since(begun).Seconds())
	awaitState(t, w.c, victim, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	w.holds(victim, agboxv1.SandboxState_SANDBOX_STATE_FAILED)
	wantRun(t, in, box)
	for n, remove := range tidy {
		if _, err := p.API().ContainerInspect(harness.Bounded(t), fmt.Sprintf("flood-%d-1", n)); err != nil {
			t.Errorf("the foreign container: %v", err)
		}
		remove()
	}
	w.check(t)
}
