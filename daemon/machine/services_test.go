package machine

import (
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// dbRules is a sandbox with one required service that has a hook.
var dbRules = Rules{ReadyWithin: time.Minute, Retry: time.Second, Services: []ServiceRule{{Name: "db", Required: true, Hooks: 1}}}

// withDB appends an event of service db, at a time after t0.
func withDB(r Record, typ agboxv1.EventType, at time.Duration, d *agboxv1.ServiceEventDetails) Record {
	if d == nil {
		d = &agboxv1.ServiceEventDetails{Start: 1}
	}
	d.Name = "db"
	ev := event(r.LastSequence+1, typ, "")
	ev.OccurredAt.Seconds = t0.Add(at).Unix()
	ev.Details = &agboxv1.SandboxEvent_Service{Service: d}
	return Fold(r, ev)
}

// hookEnded appends the start and the end of the hook of db's first start.
func hookEnded(r Record, code int32) Record {
	begun := event(r.LastSequence+1, started, "hook")
	begun.GetExec().Hook = &agboxv1.HookRef{Service: "db", Start: 1}
	ended := event(r.LastSequence+2, finished, "hook")
	ended.GetExec().ExitCode = code
	return Fold(Fold(r, begun), ended)
}

// seenDB is a running, linked primary beside a service container.
func seenDB(state runtime.ContainerState, health string) Observation {
	return Observation{
		Looked: true, Leftovers: true, Primary: primary(runtime.StateRunning), StartedAt: t0, Connected: true,
		Services: map[string]ServiceSeen{"db": {Container: &runtime.Container{ID: "s", State: state, Health: health, ExitCode: 7}, Started: 1}},
	}
}

func TestServicesFollowTheirTable(t *testing.T) {
	const (
		exited    = agboxv1.ErrorReason_SERVICE_EXITED
		unhealthy = agboxv1.ErrorReason_SERVICE_UNHEALTHY
		missing   = agboxv1.ErrorReason_SERVICE_MISSING
		hook      = agboxv1.ErrorReason_HOOK_FAILED
	)
	failure := func(reason agboxv1.ErrorReason, failures uint32) *agboxv1.ServiceEventDetails {
		return &agboxv1.ServiceEventDetails{Start: 1, Failures: failures, ErrorCode: reason.String(), ErrorMessage: "Service db is not well.", HooksDone: 1}
	}
	making := stream(accepted)
	starting := withDB(making, serviceStarted, 0, nil)
	up := withDB(hookEnded(starting, 0), serviceReady, 0, &agboxv1.ServiceEventDetails{Start: 1, HooksDone: 1})
	live := withDB(stream(accepted, ready), serviceReady, 0, &agboxv1.ServiceEventDetails{Start: 1, HooksDone: 1})
	down := func(reason agboxv1.ErrorReason, failures uint32) Record {
		return withDB(live, serviceFailed, 0, failure(reason, failures))
	}
	created := seenDB(runtime.StateCreated, "")
	created.Primary = primary(runtime.StateCreated)
	created.StartedAt = time.Time{}
	restarted := seenDB(runtime.StateExited, "")
	restarted.Services = map[string]ServiceSeen{"db": {Container: restarted.Services["db"].Container}}
	gone := seenDB("", "")
	gone.Services = nil
	broken := seenDB(runtime.StateCreated, "")
	broken.Services = map[string]ServiceSeen{"db": {Failure: &ServiceFailure{Reason: agboxv1.ErrorReason_IMAGE_NOT_FOUND, Message: "no image"}}}
	unlinked := seenDB(runtime.StateRunning, runtime.Healthy)
	unlinked.Connected, unlinked.ConnectFailed = false, true

	for _, tc := range []struct {
		name   string
		record Record
		seen   Observation
		after  time.Duration // since t0
		do     Verb
		event  agboxv1.EventType
		reason agboxv1.ErrorReason
	}{
		{"a made service is started before the primary", making, created, 0, Emit, serviceStarted, 0},
		{"a start that was decided is carried out", starting, restarted, 0, StartServices, 0, 0},
		{"a start that was carried out and ended has failed", starting, seenDB(runtime.StateExited, ""), 0, Emit, serviceFailed, exited},
		{"health is waited for", starting, seenDB(runtime.StateRunning, runtime.HealthStarting), time.Hour, Rest, 0, 0},
		{"a service that has just begun to run is not trusted yet", starting, seenDB(runtime.StateRunning, ""), 0, Rest, 0, 0},
		{"a healthy service has its hooks run", starting, seenDB(runtime.StateRunning, runtime.Healthy), 0, RunHook, 0, 0},
		{"without a healthcheck running is enough", starting, seenDB(runtime.StateRunning, ""), time.Second, RunHook, 0, 0},
		{"after its hooks it is ready", hookEnded(starting, 0), seenDB(runtime.StateRunning, runtime.Healthy), 0, Emit, serviceReady, 0},
		{"a hook that fails is told", hookEnded(starting, 1), seenDB(runtime.StateRunning, runtime.Healthy), 0, Emit, serviceFailed, hook},
		{"then the sandbox fails", withDB(starting, serviceFailed, 0, failure(hook, 0)), seenDB(runtime.StateRunning, runtime.Healthy), 0, Emit, failed, hook},
		{"with the service the sandbox is ready", up, seenDB(runtime.StateRunning, runtime.Healthy), 0, Emit, ready, 0},
		{"an unhealthy service fails a new sandbox", withDB(starting, serviceFailed, 0, failure(unhealthy, 1)), seenDB(runtime.StateRunning, runtime.Unhealthy), 0, Emit, failed, unhealthy},
		{"one that exits is tried again", withDB(starting, serviceFailed, 0, failure(exited, 2)), seenDB(runtime.StateExited, ""), 2 * time.Second, Emit, serviceStarted, 0},
		{"but not for ever", withDB(starting, serviceFailed, 0, failure(exited, 3)), seenDB(runtime.StateExited, ""), 0, Emit, failed, exited},

		{"a live service that exits is told", live, seenDB(runtime.StateExited, ""), 0, Emit, serviceFailed, exited},
		{"a live service that turns unhealthy is told", live, seenDB(runtime.StateRunning, runtime.Unhealthy), 0, Emit, serviceFailed, unhealthy},
		{"a live service that was removed is told", live, gone, 0, Emit, serviceFailed, missing},
		{"what could not be made is told", live, broken, 0, Emit, serviceFailed, agboxv1.ErrorReason_IMAGE_NOT_FOUND},
		{"a restart waits for its time", down(exited, 2), seenDB(runtime.StateExited, ""), time.Second, Rest, 0, 0},
		{"and comes then", down(exited, 2), seenDB(runtime.StateExited, ""), 2 * time.Second, Emit, serviceStarted, 0},
		{"an unhealthy one is stopped first", down(unhealthy, 1), seenDB(runtime.StateRunning, runtime.Unhealthy), time.Second, StopServices, 0, 0},
		{"one that heals by itself is ready again", down(unhealthy, 1), seenDB(runtime.StateRunning, runtime.Healthy), 0, Emit, serviceReady, 0},
		{"a removed one is made again", down(missing, 1), gone, time.Second, MakeServices, 0, 0},
		{"one that somebody else started counts as started", down(exited, 1), seenDB(runtime.StateRunning, ""), 0, Emit, serviceStarted, 0},
		{"what fails too often is left alone", down(exited, serviceRestarts+1), seenDB(runtime.StateExited, ""), time.Hour, Rest, 0, 0},
		{"a failed hook stops nothing later", down(hook, 0), seenDB(runtime.StateRunning, runtime.Healthy), time.Hour, Rest, 0, 0},
		{"services are looked after while the supervisor is away", live, func() Observation { o := unlinked; o.Services = seenDB(runtime.StateExited, "").Services; return o }(), 0, Emit, serviceFailed, exited},
		{"hooks wait for the link", withDB(live, serviceStarted, 0, &agboxv1.ServiceEventDetails{Start: 2}), unlinked, 0, Rest, 0, 0},

		{"a sandbox stops its primary first", Fold(live, event(9, stopReq, "")), seenDB(runtime.StateRunning, ""), 0, Stop, 0, 0},
		{"then its services", Fold(live, event(9, stopReq, "")), func() Observation {
			o := seenDB(runtime.StateRunning, "")
			o.Primary = primary(runtime.StateExited)
			return o
		}(), 0, StopServices, 0, 0},
		{"a sandbox that fails takes its services along", Fold(live, event(9, failed, "")), func() Observation {
			o := seenDB(runtime.StateRunning, "")
			o.Primary = primary(runtime.StateExited)
			return o
		}(), 0, StopServices, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			step := Next(tc.record, tc.seen, dbRules, t0.Add(tc.after))
			if step.Do != tc.do || step.Event.GetEventType() != tc.event {
				t.Fatalf("Next says %s %s, want %s %s", step.Do, step.Event.GetEventType(), tc.do, tc.event)
			}
			got := step.Event.GetService().GetErrorCode() + step.Event.GetSandboxPhase().GetErrorCode()
			if tc.reason != 0 && got != tc.reason.String() {
				t.Errorf("the reason is %q, want %s", got, tc.reason)
			}
		})
	}
}

func TestRestartsOfAServiceComeLaterAndLater(t *testing.T) {
	for failures, want := range map[uint32]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 5: 16 * time.Second, 6: 30 * time.Second, 60: 30 * time.Second} {
		if got := backoff(failures); got != want {
			t.Errorf("after %d failures the pause is %s, want %s", failures, got, want)
		}
	}
}

func TestAStableServiceHasItsFailuresForgotten(t *testing.T) {
	live := withDB(stream(accepted, ready), serviceReady, 0, &agboxv1.ServiceEventDetails{Start: 4, Failures: 4, HooksDone: 1})
	for after, want := range map[time.Duration]uint32{serviceStable - time.Second: 5, serviceStable: 1} {
		step := Next(live, seenDB(runtime.StateExited, ""), dbRules, t0.Add(after))
		if got := step.Event.GetService().GetFailures(); got != want {
			t.Errorf("after %s it is failure %d in a row, want %d", after, got, want)
		}
	}
}

func TestAServiceWaitsForWhatItDependsOn(t *testing.T) {
	rules := Rules{Services: []ServiceRule{
		{Name: "db", Required: true},
		{Name: "app", Required: true, After: []Dependency{{Name: "db", Healthy: true}}},
	}}
	o := seenDB(runtime.StateRunning, runtime.HealthStarting)
	o.Services["app"] = ServiceSeen{Container: &runtime.Container{ID: "a", State: runtime.StateCreated}}
	r := withDB(stream(accepted), serviceStarted, 0, nil)
	if step := Next(r, o, rules, t0); step.Do != Rest {
		t.Errorf("before db is healthy: %s %s", step.Do, step.Event)
	}
	o.Services["db"].Container.Health = runtime.Healthy
	r = withDB(r, serviceReady, 0, nil)
	if step := Next(r, o, rules, t0); step.Event.GetService().GetName() != "app" || step.Event.GetEventType() != serviceStarted {
		t.Errorf("after db is healthy: %s %s", step.Do, step.Event)
	}
}

func TestWhatARequiredServiceNeedsIsRequired(t *testing.T) {
	no := false
	rules := ServiceRules(&agboxv1.CreateSpec{Services: []*agboxv1.ServiceSpec{
		{Name: "a", Required: &no},
		{Name: "b", Required: &no, DependsOn: []*agboxv1.ServiceDependency{{Name: "a"}}},
		{Name: "c", DependsOn: []*agboxv1.ServiceDependency{{Name: "b"}}},
		{Name: "d", Required: &no},
	}})
	for i, want := range []bool{true, true, true, false} {
		if rules[i].Required != want {
			t.Errorf("service %s: required is %v", rules[i].Name, rules[i].Required)
		}
	}
}

func TestARequestStartsTheServicesAnew(t *testing.T) {
	r := withDB(stream(accepted, ready), serviceFailed, 0, &agboxv1.ServiceEventDetails{Start: 9, Failures: 9, ErrorCode: "SERVICE_EXITED"})
	for _, typ := range []agboxv1.EventType{failed, resume} {
		r = Fold(r, event(r.LastSequence+1, typ, ""))
	}
	if s := r.Services["db"]; s.Phase != Waiting || s.Failures != 0 || s.Start != 9 {
		t.Errorf("the service is at %+v; want it to wait for its tenth start", s)
	}
}

func TestAHookOfAnEarlierStartDoesNotCountForALaterOne(t *testing.T) {
	r := withDB(stream(accepted), serviceStarted, 0, nil)
	begun := event(r.LastSequence+1, started, "late")
	begun.GetExec().Hook = &agboxv1.HookRef{Service: "db", Start: 1}
	r = withDB(Fold(r, begun), serviceStarted, 0, &agboxv1.ServiceEventDetails{Start: 2})
	r = Fold(r, event(r.LastSequence+1, finished, "late"))
	if s := r.Services["db"]; s.Hooks != 0 || s.HookFailure != nil {
		t.Errorf("the second start is at %+v", s)
	}
}

func TestAHookIsKeptUntilALaterEventTellsOfIt(t *testing.T) {
	strict := Retention{KeepExecs: time.Second, MaxExecs: 1, MaxEvents: 1}
	hook := func(n uint64, typ agboxv1.EventType, id string) *agboxv1.SandboxEvent {
		ev := event(n, typ, id)
		ev.GetExec().Hook = &agboxv1.HookRef{Service: "db", Start: 1}
		return ev
	}
	begun := event(2, serviceStarted, "")
	begun.Details = &agboxv1.SandboxEvent_Service{Service: &agboxv1.ServiceEventDetails{Name: "db", Start: 1}}
	events := []*agboxv1.SandboxEvent{event(1, accepted, ""), begun, hook(3, started, "h"), event(4, finished, "h"), event(5, started, "x"), event(6, finished, "x")}
	if got := text(historyOf(events...).Trim(strict, allRecorded, t0.Add(time.Hour))); got != "h[] x[]" {
		t.Errorf("%q goes", got)
	}
	events = append(events, serviceEvent(7, "db"))
	if got := text(historyOf(events...).Trim(strict, allRecorded, t0.Add(time.Hour))); got != "[2] h[3 4] x[]" {
		t.Errorf("%q goes once the service is ready", got)
	}
}

func TestTroubleOfRequiredServicesIsSaid(t *testing.T) {
	up := withDB(stream(accepted, ready), serviceReady, 0, nil)
	down := withDB(up, serviceFailed, 0, &agboxv1.ServiceEventDetails{Start: 1, Failures: 1, ErrorCode: "SERVICE_EXITED", ErrorMessage: "Service db exited with code 7."})
	again := withDB(down, serviceStarted, 0, &agboxv1.ServiceEventDetails{Start: 2, Failures: 1})
	for want, r := range map[string]Record{
		"": up,
		"Service db exited with code 7. It is started again.": down,
		"Service db had failed and is being started again.":   again,
	} {
		if got := ServiceTrouble(r, dbRules.Services); got != want {
			t.Errorf("%q is said, want %q", got, want)
		}
	}
	if got := ServiceTrouble(down, []ServiceRule{{Name: "db"}}); got != "" {
		t.Errorf("of an optional service is said: %q", got)
	}
}

// A published client calls it a companion container.
func TestAnEarlyServiceIsReadyBeforeItsSandboxAndDoesNotHoldItUp(t *testing.T) {
	rules := dbRules
	rules.Services = []ServiceRule{{Name: "db", Early: true, Hooks: 1}}
	plain := rules
	plain.Services = []ServiceRule{{Name: "db", Early: true}}
	making := stream(accepted)
	starting := withDB(making, serviceStarted, 0, nil)
	without := func(change func(*ServiceSeen)) Observation {
		o := seenDB(runtime.StateRunning, "")
		seen := ServiceSeen{}
		change(&seen)
		o.Services = map[string]ServiceSeen{"db": seen}
		return o
	}
	failure := without(func(s *ServiceSeen) {
		s.Failure = &ServiceFailure{Reason: agboxv1.ErrorReason_IMAGE_NOT_FOUND, Message: "no image"}
	})
	failed := withDB(making, serviceFailed, 0, &agboxv1.ServiceEventDetails{Failures: 1, ErrorCode: "IMAGE_NOT_FOUND"})
	up := withDB(starting, serviceReady, 0, nil)
	for _, tc := range []struct {
		name   string
		record Record
		seen   Observation
		rules  Rules
		after  time.Duration
		do     Verb
		event  agboxv1.EventType
	}{
		{"it is made in the background", making, without(func(*ServiceSeen) {}), plain, 0, MakeServices, 0},
		{"READY waits for its container", making, without(func(s *ServiceSeen) { s.Making = true }), plain, 0, Rest, 0},
		{"it is started", making, seenDB(runtime.StateCreated, ""), plain, 0, Emit, serviceStarted},
		{"READY waits for a moment", starting, seenDB(runtime.StateRunning, ""), plain, 0, Rest, 0},
		{"it is ready", starting, seenDB(runtime.StateRunning, ""), plain, time.Second, Emit, serviceReady},
		{"then its sandbox", up, seenDB(runtime.StateRunning, ""), plain, time.Second, Emit, ready},
		{"a healthcheck holds nothing up", starting, seenDB(runtime.StateRunning, runtime.HealthStarting), plain, 0, Emit, ready},
		{"a healthy one is told first", starting, seenDB(runtime.StateRunning, runtime.Healthy), plain, 0, Emit, serviceReady},
		{"hooks run afterwards", starting, seenDB(runtime.StateRunning, runtime.Healthy), rules, 0, Emit, ready},
		{"a failure is told first", making, failure, plain, 0, Emit, serviceFailed},
		{"it fails alone", failed, without(func(*ServiceSeen) {}), plain, 0, Emit, ready},
	} {
		step := Next(tc.record, tc.seen, tc.rules, t0.Add(tc.after))
		if step.Do != tc.do || step.Event.GetEventType() != tc.event {
			t.Errorf("%s: %s %s, want %s %s", tc.name, step.Do, step.Event.GetEventType(), tc.do, tc.event)
		}
	}
	if step := Next(starting, seenDB(runtime.StateRunning, runtime.Healthy), Rules{Services: []ServiceRule{{Name: "db"}}}, t0); step.Event.GetEventType() != ready {
		t.Errorf("one that is not early: %s %s, want its sandbox ready first", step.Do, step.Event.GetEventType())
	}
}

func TestAOneShotServiceIsReadyWhenItHasEnded(t *testing.T) {
	rules := Rules{Services: []ServiceRule{
		{Name: "db", Required: true, OneShot: true},
		{Name: "app", Required: true, After: []Dependency{{Name: "db", OneShot: true}}},
	}}
	seen := func(state runtime.ContainerState, code int, begun time.Duration) Observation {
		o := seenDB(state, "")
		o.Services = map[string]ServiceSeen{
			"db":  {Container: &runtime.Container{ID: "s", State: state, ExitCode: code, StartedAt: t0.Add(begun)}},
			"app": {Container: &runtime.Container{ID: "a", State: runtime.StateCreated}},
		}
		return o
	}
	starting := withDB(stream(accepted), serviceStarted, 0, nil)
	up := withDB(starting, serviceReady, 0, &agboxv1.ServiceEventDetails{Start: 1})
	down := withDB(starting, serviceFailed, 0, &agboxv1.ServiceEventDetails{Start: 1, Failures: 1, ErrorCode: agboxv1.ErrorReason_SERVICE_EXITED.String()})
	pruned := seen(runtime.StateExited, 0, 0)
	pruned.Services["db"] = ServiceSeen{}
	live := Fold(up, event(9, ready, ""))
	for _, tc := range []struct {
		name   string
		record Record
		seen   Observation
		do     Verb
		about  string
		event  agboxv1.EventType
	}{
		{"its end is waited for", starting, seen(runtime.StateRunning, 0, time.Second), Rest, "", 0},
		{"a start that nobody carried out is carried out", starting, seen(runtime.StateExited, 0, -time.Hour), StartServices, "db", 0},
		{"one that an earlier daemon has started is not started again", starting, seen(runtime.StateExited, 0, time.Second), Emit, "db", serviceReady},
		{"another code is a failure", starting, seen(runtime.StateExited, 3, time.Second), Emit, "db", serviceFailed},
		{"with which a new sandbox fails at once", down, seen(runtime.StateExited, 3, time.Second), Emit, "", failed},
		{"then the others start", up, seen(runtime.StateExited, 0, time.Second), Emit, "app", serviceStarted},
		{"also if its container is removed", up, pruned, Emit, "app", serviceStarted},
	} {
		step := Next(tc.record, tc.seen, rules, t0.Add(time.Minute))
		about := step.Event.GetService().GetName()
		if len(step.Services) > 0 {
			about = step.Services[0]
		}
		if step.Do != tc.do || step.Event.GetEventType() != tc.event || about != tc.about {
			t.Errorf("%s: Next says %s %s of %q", tc.name, step.Do, step.Event.GetEventType(), about)
		}
	}
	if got := ServiceTrouble(live, rules.Services[:1]); got != "" {
		t.Errorf("a sandbox whose one-shot service has ended is in trouble: %s", got)
	}
}
