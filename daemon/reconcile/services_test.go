package reconcile

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/logs"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// served is a sandbox with a database, an app that depends on its health, and an optional
// service.
func served() *agboxv1.CreateSpec {
	return &agboxv1.CreateSpec{
		Image: runtimetest.FakeImage, PostCreate: []string{"created"},
		Services: []*agboxv1.ServiceSpec{
			{
				Name: "db", Image: runtimetest.FakeImage, PostStartOnPrimary: []string{"hook 1", "hook 2"},
				Healthcheck: &agboxv1.HealthcheckConfig{Test: []string{"CMD", "well"}},
				Volumes:     []*agboxv1.VolumeSpec{{Name: "data", Target: "/data"}},
			},
			{
				Name: "app", Image: runtimetest.FakeImage,
				DependsOn: []*agboxv1.ServiceDependency{{Name: "db", Condition: agboxv1.DependencyCondition_DEPENDENCY_CONDITION_HEALTHY}},
			},
			{Name: "extra", Image: runtimetest.FakeImage, Required: proto.Bool(false)},
		},
	}
}

func (l *life) createServed(id string, spec *agboxv1.CreateSpec) {
	l.t.Helper()
	if _, err := l.ledger.Create(l.t.Context(), id, spec); err != nil {
		l.t.Fatal(err)
	}
	l.loop.Enqueue(id)
}

// container returns the container of a service, or a zero value.
func (l *life) container(service string) runtime.Container {
	for _, c := range l.engine.Containers() {
		if c.Service == service {
			return c
		}
	}
	return runtime.Container{}
}

func (l *life) service(id, name string) machine.Service {
	sb, _ := l.ledger.Sandbox(id)
	return sb.Services[name]
}

func (l *life) awaitService(id, name string, phase machine.Phase) {
	l.t.Helper()
	l.until(fmt.Sprintf("service %s in phase %d", name, phase), func() bool { return l.service(id, name).Phase == phase })
}

// heal makes the healthcheck of the database pass once it runs.
func (l *life) heal() {
	l.t.Helper()
	l.until("the database", func() bool { return l.container("db").State == runtime.StateRunning })
	l.engine.SetHealth(l.container("db").ID, runtime.Healthy)
}

// A full look that began before a container ran is not used after its start, even if
// somebody requested a look earlier.
func TestAnOldLookDoesNotHideAStart(t *testing.T) {
	t.Parallel()
	l := beginWith(t, runtimetest.NewFake(), t.TempDir(), time.Hour)
	l.createServed("a", served())
	l.until("the database", func() bool { return l.container("db").State == runtime.StateRunning })
	l.until("the link", func() bool { return l.guests.Connected("a") })
	starts := l.engine.Calls(runtimetest.VerbStartContainer)
	release := l.engine.Hang(runtimetest.VerbStartContainer)
	l.heal()
	l.until("the start of the app", func() bool { return l.engine.Calls(runtimetest.VerbStartContainer) > starts })
	asked := time.Now()
	l.loop.Enqueue("a")
	l.engine.Restart(true) // the event stream breaks, and a full look follows
	l.until("a full look", func() bool {
		l.loop.mu.Lock()
		defer l.loop.mu.Unlock()
		return l.loop.inventoryAt.After(asked)
	})
	release()
	if s := l.await("a", machine.Ready).Services["app"]; s.Start != 1 || s.Failures != 0 {
		t.Errorf("an app that has run all the time is %+v", s)
	}
}

// A full look whose list was older than what a round has seen is not used after it, even if
// it began later: the end of a container is in an inspection before it is in a list.
func TestAnOldLookDoesNotUndoAnEnd(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	engine.LateLists()
	l := beginWith(t, engine, t.TempDir(), time.Hour)
	l.create("a", runtimetest.FakeImage)
	l.await("a", machine.Ready)
	primary := l.container("")
	if _, err := l.ledger.RequestRestart(t.Context(), "a", false); err != nil { // the loop does not know of it yet
		t.Fatal(err)
	}
	release := engine.Hang(runtimetest.VerbInspectContainer)
	inspected := engine.Calls(runtimetest.VerbInspectContainer)
	engine.Kill(primary.ID, 0) // the stop of an earlier daemon takes effect
	l.until("a look at the end", func() bool { return engine.Calls(runtimetest.VerbInspectContainer) > inspected })
	asked := time.Now()
	engine.Restart(true) // the event stream breaks, and a full look follows
	l.until("a full look", func() bool {
		l.loop.mu.Lock()
		defer l.loop.mu.Unlock()
		return l.loop.inventoryAt.After(asked)
	})
	release()
	l.until("the end of the restart", func() bool {
		sb, _ := l.ledger.Sandbox("a")
		return sb.State == machine.Failed || sb.State == machine.Ready && l.container("").State == runtime.StateRunning
	})
	if sb, _ := l.ledger.Sandbox("a"); sb.State != machine.Ready {
		t.Errorf("a restart makes the sandbox %s: %s", sb.State, sb.ErrorMessage)
	}
}

func TestServicesComeUpInTheirOrderAndThenTheSandboxIsReady(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createServed("a", served())
	l.until("the database", func() bool { return l.container("db").Health == runtime.HealthStarting })
	l.until("the link", func() bool { return l.guests.Connected("a") })
	if sb, _ := l.ledger.Sandbox("a"); sb.State != machine.Pending || l.container("app").State != runtime.StateCreated {
		t.Errorf("before the database is healthy the sandbox is %s, and app %s", sb.State, l.container("app").State)
	}
	l.heal()
	r := l.await("a", machine.Ready)
	for _, name := range []string{"db", "app"} {
		if s := r.Services[name]; s.Phase != machine.Up || s.Start != 1 {
			t.Errorf("READY with %s at %+v", name, s)
		}
	}
	if got := l.guests.ran(); !slices.Equal(got, []string{"hook 1", "hook 2", "created"}) {
		t.Errorf("the hooks that ran are %q", got)
	}
	l.awaitService("a", "extra", machine.Up)
	l.stop("a")
	l.await("a", machine.Stopped)
	for _, c := range l.objects().Containers {
		if c.State == runtime.StateRunning {
			t.Errorf("%s runs in a stopped sandbox", c.Name)
		}
	}
	l.want(l.ledger.RequestResume, "a")
	l.heal()
	l.await("a", machine.Ready)
	if got := l.guests.ran(); !slices.Equal(got, []string{"hook 1", "hook 2", "created", "hook 1", "hook 2"}) {
		t.Errorf("after a resume the hooks that ran are %q", got)
	}
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	l.nothingLeft()
}

func TestAnOptionalServiceThatCannotBeMadeDelaysNothing(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	spec := &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Services: []*agboxv1.ServiceSpec{
		{Name: "extra", Image: "no/such:image", Required: proto.Bool(false)},
	}}
	l.createServed("a", spec)
	l.await("a", machine.Ready)
	l.awaitService("a", "extra", machine.Down)
	if s := l.service("a", "extra"); s.Reason != agboxv1.ErrorReason_IMAGE_NOT_FOUND.String() {
		t.Errorf("the service is at %+v", s)
	}
	sb, _ := l.ledger.Sandbox("a")
	if c := l.loop.Condition(sb); c.Degraded != "" {
		t.Errorf("degraded: %s", c.Degraded)
	}
}

func TestAVolumeThatTheEngineMakesLateGoesWithItsFailedSandbox(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createServed("a", &agboxv1.CreateSpec{Image: "no/such:image"})
	l.await("a", machine.Failed)
	l.nothingLeft()
	l.until("rest", func() bool {
		l.loop.mu.Lock()
		defer l.loop.mu.Unlock()
		w := l.loop.sandboxes["a"]
		return !l.loop.workers.Busy(sandboxKey("a")) && l.loop.inventoryAt.After(w.looked)
	})
	sb, _ := l.ledger.Sandbox("a")
	if err := l.engine.EnsureVolume(t.Context(), l.loop.volumeSpec(sb, "data")); err != nil {
		t.Fatal(err)
	}
	l.nothingLeft()
}

func TestAPullForAnOptionalServiceIsWaitedForWithoutAsking(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	engine.PullForEver("large:image")
	l := begin(t, engine, t.TempDir())
	l.createServed("a", &agboxv1.CreateSpec{Image: runtimetest.FakeImage, Services: []*agboxv1.ServiceSpec{
		{Name: "extra", Image: "large:image", Required: proto.Bool(false)},
	}})
	l.await("a", machine.Ready)
	l.until("a rest without a timer", func() bool {
		l.loop.mu.Lock()
		defer l.loop.mu.Unlock()
		w := l.loop.sandboxes["a"]
		return l.loop.workers.Resting(sandboxKey("a")) && w.services["extra"] != nil && w.services["extra"].cancel != nil
	})
	l.want(l.ledger.RequestDelete, "a")
	l.await("a", machine.Deleted)
	l.nothingLeft()
}

func TestARequiredServiceWithoutAnImageFailsTheSandbox(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	spec := served()
	spec.Services[1].Image = "no/such:image"
	l.createServed("a", spec)
	if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_IMAGE_NOT_FOUND.String() {
		t.Errorf("the reason is %s: %s", r.ErrorReason, r.ErrorMessage)
	}
	l.nothingLeft()
}

func TestAWrongImageIsSaidWhileAnotherIsStillBeingPulled(t *testing.T) {
	t.Parallel()
	for name, spec := range map[string]*agboxv1.CreateSpec{
		"of the primary": {Image: "no/such:image", Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "large:image"}}},
		"of a service":   {Image: "large:image", Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "no/such:image"}}},
	} {
		t.Run(name, func(t *testing.T) {
			engine := runtimetest.NewFake()
			engine.PullForEver("large:image")
			l := begin(t, engine, t.TempDir())
			l.createServed("a", spec)
			if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_IMAGE_NOT_FOUND.String() {
				t.Errorf("the reason is %s: %s", r.ErrorReason, r.ErrorMessage)
			}
			l.nothingLeft()
		})
	}
}

func TestAHookThatFailsAtCreationFailsTheSandbox(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*agboxv1.CreateSpec){
		"of a service": func(s *agboxv1.CreateSpec) { s.Services[0].PostStartOnPrimary[1] = "false" },
		"post_create":  func(s *agboxv1.CreateSpec) { s.PostCreate[0] = "false" },
	} {
		t.Run(name, func(t *testing.T) {
			l := begin(t, runtimetest.NewFake(), t.TempDir())
			spec := served()
			change(spec)
			l.createServed("a", spec)
			l.heal()
			if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_HOOK_FAILED.String() {
				t.Errorf("the reason is %s: %s", r.ErrorReason, r.ErrorMessage)
			}
			l.nothingLeft()
		})
	}
}

func TestAServiceThatDiesOrVanishesComesBack(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createServed("a", served())
	l.heal()
	l.await("a", machine.Ready)
	l.engine.Kill(l.container("db").ID, 3)
	l.awaitService("a", "db", machine.Down)
	sb, _ := l.ledger.Sandbox("a")
	if c := l.loop.Condition(sb); c.Degraded == "" {
		t.Error("a sandbox without its database is not degraded")
	}
	l.heal()
	l.awaitService("a", "db", machine.Up)
	gone := l.container("app").ID
	l.engine.Vanish(gone)
	l.until("another container", func() bool { return l.container("app").State == runtime.StateRunning && l.container("app").ID != gone })
	l.awaitService("a", "app", machine.Up)
}

// Its last output is in an event, which the database keeps and every client is shown.
func TestTheLastOutputOfAServiceHasNoSecrets(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	spec, value := served(), runtime.ServiceName("a", "db") // which the engine has as the output of the service
	spec.Services[1].Envs = map[string]string{"DB_PASSWORD": value}
	l.createServed("a", spec)
	l.heal()
	l.await("a", machine.Ready)
	l.engine.Kill(l.container("db").ID, 3)
	l.awaitService("a", "db", machine.Down)
	events, err := l.ledger.Events(t.Context(), "a", 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	said := ""
	for _, ev := range events.Records {
		said += ev.GetService().GetErrorMessage()
	}
	if !strings.HasSuffix(said, "Its last output: output of "+logs.Mask) || strings.Contains(said, value) {
		t.Errorf("the events say %q", said)
	}
}

// What is cut off must not leave the end of a value, which nothing would recognize.
func TestTheLastOutputIsCutAfterItsSecretsAreReplaced(t *testing.T) {
	value := strings.Repeat("0123456789", lastBytes/5)
	out := new(tail)
	_, _ = out.Write([]byte("begin " + value + strings.Repeat("x", lastBytes/2)))
	secret := redactor(&agboxv1.CreateSpec{Envs: map[string]string{"API_KEY": value}})
	if got := outputWords(secret, out.bytes()); got != "begin "+logs.Mask+strings.Repeat("x", lastBytes/2) {
		t.Errorf("the last output is %q", got)
	}
}

func TestADeathThatListsDoNotShowYetIsSeen(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	engine.LateLists()
	l := begin(t, engine, t.TempDir())
	l.createServed("a", served())
	l.heal()
	l.await("a", machine.Ready)
	l.engine.Kill(l.container("app").ID, 3)
	l.until("the next start", func() bool { return l.service("a", "app").Start == 2 })
	l.awaitService("a", "app", machine.Up)
}

// TestADoubtOutlivesAnInspectionThatFails: the next list may not show the end either.
func TestADoubtOutlivesAnInspectionThatFails(t *testing.T) {
	t.Parallel()
	engine := runtimetest.NewFake()
	engine.LateLists()
	l := begin(t, engine, t.TempDir())
	l.createServed("a", served())
	l.heal()
	l.await("a", machine.Ready)
	app := l.container("app").ID
	before := engine.Calls(runtimetest.VerbInspectContainer)
	engine.Fail(runtimetest.VerbInspectContainer, errors.New("no answer"))
	engine.Kill(app, 3)
	l.until("the inspection that fails", func() bool { return engine.Calls(runtimetest.VerbInspectContainer) > before })
	engine.Fail(runtimetest.VerbInspectContainer, nil)
	l.until("the next start", func() bool { return l.service("a", "app").Start == 2 })
}

func TestAHookThatRunsOverADaemonRestartRunsOnce(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.guests.held = true
	l.createServed("a", served())
	l.heal()
	l.until("the hook", func() bool { return len(l.guests.ran()) == 1 })
	hook := l.guests.hooks[0]
	n := l.next()
	n.until("the sandbox to be looked at", func() bool { return n.guests.Connected("a") })
	if err := n.guests.endHook(t.Context(), hook); err != nil {
		t.Fatal(err)
	}
	n.await("a", machine.Ready)
	if got := n.guests.ran(); !slices.Equal(got, []string{"hook 2", "created"}) {
		t.Errorf("the second daemon ran %q", got)
	}
}

func TestTheEndOfAHookIsNoticedByAWorkerAtRest(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.guests.held = true
	l.createServed("a", served())
	l.heal()
	l.until("the hook", func() bool { return len(l.guests.ran()) == 1 })
	l.until("a rest", func() bool {
		l.loop.mu.Lock()
		defer l.loop.mu.Unlock()
		w := l.loop.sandboxes["a"]
		return w != nil && l.loop.workers.Resting(sandboxKey("a")) && l.container("app").Health == "" && l.loop.inventoryAt.After(w.looked)
	})
	l.guests.mu.Lock()
	l.guests.held = false
	hook := l.guests.hooks[0]
	l.guests.mu.Unlock()
	if err := l.guests.endHook(t.Context(), hook); err != nil {
		t.Fatal(err)
	}
	l.await("a", machine.Ready)
}

func TestLostRepliesMakeNoServiceTwice(t *testing.T) {
	t.Parallel()
	for _, verb := range []runtimetest.Verb{
		runtimetest.VerbEnsureNetwork, runtimetest.VerbEnsureContainer, runtimetest.VerbStartContainer, runtimetest.VerbEnsureVolume,
	} {
		t.Run(string(verb), func(t *testing.T) {
			engine := runtimetest.NewFake()
			engine.LoseReply(verb)
			l := begin(t, engine, t.TempDir())
			l.createServed("a", served())
			l.heal()
			l.await("a", machine.Ready)
			l.awaitService("a", "extra", machine.Up)
			if inv := l.objects(); len(inv.Containers) != 4 || len(inv.Networks) != 1 || len(inv.Volumes) != 1 {
				t.Errorf("the engine has %+v", inv)
			}
		})
	}
}

// TestServicesComeBackFromAnything mixes exits, removals, healthchecks, outages and
// daemon restarts.
func TestServicesComeBackFromAnything(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0))
			l := begin(t, runtimetest.NewFake(), t.TempDir())
			l.createServed("a", served())
			l.heal()
			l.await("a", machine.Ready)
			for range 6 {
				c := l.container([]string{"db", "app", "extra"}[random.IntN(3)])
				switch random.IntN(5) {
				case 0:
					l.engine.Kill(c.ID, 1)
				case 1:
					l.engine.Vanish(c.ID)
				case 2:
					l.engine.SetHealth(l.container("db").ID, runtime.Unhealthy)
				case 3:
					l.engine.Restart(true)
				default:
					l = l.next()
				}
			}
			l.until("all services", func() bool {
				if db := l.container("db"); db.State == runtime.StateRunning && db.Health == runtime.HealthStarting {
					l.engine.SetHealth(db.ID, runtime.Healthy)
				}
				for _, name := range []string{"db", "app", "extra"} {
					if l.service("a", name).Phase != machine.Up || l.container(name).State != runtime.StateRunning {
						return false
					}
				}
				return true
			})
			if inv := l.objects(); len(inv.Containers) != 4 || len(inv.Networks) != 1 {
				t.Errorf("the engine has %d containers and %d networks", len(inv.Containers), len(inv.Networks))
			}
			l.want(l.ledger.RequestDelete, "a")
			l.await("a", machine.Deleted)
			l.nothingLeft()
		})
	}
}

func TestARevivedSandboxHasItsServicesAgain(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	spec := served()
	spec.Revival = agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE
	l.createServed("a", spec)
	l.heal()
	first := l.await("a", machine.Ready)
	l.engine.Restart(false)
	l.until("the revival", func() bool {
		sb, _ := l.ledger.Sandbox("a")
		return sb.PendingSequence > first.PendingSequence
	})
	l.heal()
	r := l.await("a", machine.Ready)
	for _, name := range []string{"db", "app"} {
		if s := r.Services[name]; s.Phase != machine.Up || s.Start < 2 {
			t.Errorf("READY again with %s at %+v", name, s)
		}
	}
}

func TestAFailedSandboxLeavesNoServiceRunning(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createServed("a", served())
	l.heal()
	l.await("a", machine.Ready)
	for _, c := range l.engine.Containers() {
		if c.Role == runtime.RolePrimary {
			l.engine.Kill(c.ID, 9)
		}
	}
	l.await("a", machine.Failed)
	l.until("the end of the services", func() bool {
		return !slices.ContainsFunc(l.engine.Containers(), func(c runtime.Container) bool { return c.State == runtime.StateRunning })
	})
}
