package machine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

const (
	// serviceBackoffMin and serviceBackoffMax bound the pause before a service is started
	// again. It doubles with each consecutive failure.
	serviceBackoffMin, serviceBackoffMax = time.Second, 30 * time.Second
	// serviceRestarts is how many consecutive times a service is restarted.
	serviceRestarts = 5
	// serviceStable is how long a service must be up for its failures to be forgotten.
	serviceStable = time.Minute
	// serviceUpAfter is how long a service without a healthcheck must run to count as
	// well. Most broken services exit at once. Other services start meanwhile.
	serviceUpAfter = 500 * time.Millisecond
	// serviceTries is how many consecutive times a required service may fail before a
	// sandbox that is not READY fails. The user waits for that result.
	serviceTries = 3
)

// aim is what a service needs next.
type aim uint8

const (
	isWell aim = iota
	mustWait
	mustEmit
	mustBeMade
	mustStop
	mustStart
	mustRunHook
)

// verdict is an aim with its details.
type verdict struct {
	aim   aim
	event *agboxv1.SandboxEvent
	wake  time.Time
}

// nextServices returns the next step that the services need, or Rest. ready means that
// READY need not wait for any of them. A PENDING sandbox makes and starts the required and
// the early services, a READY one all.
func nextServices(r Record, o Observation, rules Rules, now time.Time) (step Step, ready bool) {
	named := make(map[aim][]string)
	var background []string
	ready = true
	for _, rule := range rules.Services {
		early := r.State == Pending && !rule.Required
		if early && !rule.Early {
			continue
		}
		v := nextService(r, o, rule, now)
		if early {
			if v = hurried(v, r.Services[rule.Name], o.Services[rule.Name]); v.aim == mustBeMade {
				background = append(background, rule.Name)
				ready = false
				continue
			}
		}
		if why, withheld := rules.Withheld[rule.Name]; withheld && r.State == Ready {
			v = withhold(r.Services[rule.Name], o.Services[rule.Name], rule, now, why)
		}
		if v.aim == mustEmit {
			return Step{Do: Emit, Event: v.event}, false
		}
		named[v.aim] = append(named[v.aim], rule.Name)
		ready = ready && v.aim == isWell
		step.Wake = sooner(step.Wake, v.wake)
	}
	making := MakeServices
	if r.State == Pending {
		making = Prepare
	}
	for _, deed := range []struct {
		aim
		Verb
	}{{mustBeMade, making}, {mustStop, StopServices}, {mustStart, StartServices}} {
		if names := named[deed.aim]; len(names) > 0 {
			return Step{Do: deed.Verb, Services: names}, false
		}
	}
	if len(background) > 0 {
		return Step{Do: MakeServices, Services: background}, false
	}
	if names := named[mustRunHook]; len(names) > 0 {
		s := r.Services[names[0]]
		return Step{Do: RunHook, Hook: &Hook{Service: names[0], Start: s.Start, Index: s.Hooks}}, false
	}
	return step, ready
}

// hurried returns the verdict about an early service of a PENDING sandbox. READY waits until
// its container is made and has run for a moment, but not for its health, its hooks, another
// service, or another try.
func hurried(v verdict, s Service, seen ServiceSeen) verdict {
	c := seen.Container
	settling := seen.Making || s.Phase == Starting && running(c) && !paused(c) && c.Health == ""
	if v.aim == mustRunHook || v.aim == mustWait && !settling || s.Failures > 0 && v.aim != mustEmit {
		return verdict{aim: isWell}
	}
	return v
}

func nextService(r Record, o Observation, rule ServiceRule, now time.Time) verdict {
	s, seen := r.Services[rule.Name], o.Services[rule.Name]
	c := seen.Container
	switch {
	case rule.OneShot && s.Phase == Up:
		return verdict{aim: isWell} // whatever became of its container
	case rule.OneShot && s.Phase == Down && s.exited():
		return verdict{aim: mustWait}
	case seen.Failure != nil:
		return s.failed(rule, now, seen.Failure.Reason, seen.Failure.Message)
	case seen.Making:
		return verdict{aim: mustWait} // the end of the container is reported
	case c != nil && c.State == runtime.StateRemoving:
		return verdict{aim: mustWait, wake: now.Add(serviceBackoffMin)}
	case c == nil && (s.Phase == Starting || s.Phase == Up):
		return s.failed(rule, now, agboxv1.ErrorReason_SERVICE_MISSING, fmt.Sprintf("The container of service %s was removed outside agbox.", rule.Name))
	case c == nil && s.Phase == Down:
		return s.later(now, verdict{aim: mustBeMade})
	case c == nil:
		return verdict{aim: mustBeMade}
	case running(c):
		return nextRunning(r, o, rule, now)
	}
	switch {
	case rule.OneShot && s.Phase == Starting && ran(s, seen):
		if c.ExitCode == 0 && c.Error == "" {
			return s.ready(rule)
		}
		return s.failed(rule, now, agboxv1.ErrorReason_SERVICE_EXITED, strings.TrimSuffix(serviceExit(rule.Name, c), ".")+", and must end with code 0.")
	case s.Phase == Starting && seen.Started != s.Start:
		return verdict{aim: mustStart}
	case s.Phase == Starting, s.Phase == Up, s.Phase == Down && s.Reason == agboxv1.ErrorReason_HOOK_FAILED.String():
		return s.failed(rule, now, agboxv1.ErrorReason_SERVICE_EXITED, serviceExit(rule.Name, c))
	case !dependenciesMet(r, rule, o):
		return verdict{aim: mustWait}
	case s.Phase == Down:
		return s.later(now, s.started(rule))
	}
	return s.started(rule)
}

// ran reports whether a one-shot service that does not run has run in this start. One that an
// earlier daemon has started is not started again.
func ran(s Service, seen ServiceSeen) bool {
	return seen.Started == s.Start || !seen.Container.StartedAt.Before(s.At)
}

// withhold decides about a service that must not run.
func withhold(s Service, seen ServiceSeen, rule ServiceRule, now time.Time, why string) verdict {
	switch {
	case rule.OneShot && s.Phase == Up:
		return verdict{aim: isWell}
	case seen.Making:
		return verdict{aim: mustWait}
	case running(seen.Container):
		return verdict{aim: mustStop}
	case s.Phase == Starting, s.Phase == Up:
		return s.failed(rule, now, agboxv1.ErrorReason_SERVICE_WITHHELD, why)
	}
	return verdict{aim: isWell}
}

// nextRunning decides about a service whose container runs.
func nextRunning(r Record, o Observation, rule ServiceRule, now time.Time) verdict {
	s, c := r.Services[rule.Name], o.Services[rule.Name].Container
	unhealthy := func() verdict {
		return s.failed(rule, now, agboxv1.ErrorReason_SERVICE_UNHEALTHY, fmt.Sprintf("Service %s is unhealthy: its healthcheck fails.", rule.Name))
	}
	begun := o.Services[rule.Name].StartedAt
	if begun.Before(s.At) {
		begun = s.At
	}
	upAt := begun.Add(serviceUpAfter)
	hookFailed := s.Reason == agboxv1.ErrorReason_HOOK_FAILED.String()
	switch {
	case s.Phase == Waiting:
		return s.started(rule)
	case rule.OneShot:
		return verdict{aim: mustWait} // its end is reported
	case s.Phase == Down && hookFailed && c.Health != runtime.Unhealthy:
		if r.WasReady {
			return verdict{aim: isWell} // shown to the user; it matters only during creation
		}
		return verdict{aim: mustWait}
	case s.Phase == Down && !hookFailed && c.Health == runtime.Unhealthy:
		return s.later(now, verdict{aim: mustStop})
	case c.Health == runtime.Unhealthy:
		return unhealthy()
	case s.Phase == Up:
		return verdict{aim: isWell}
	case c.Health == runtime.HealthStarting, paused(c):
		return verdict{aim: mustWait}
	case s.Phase == Starting && c.Health == "" && now.Before(upAt):
		return verdict{aim: mustWait, wake: upAt}
	case s.Phase == Down && s.Hooks < rule.Hooks, s.Phase == Down && s.Reason != agboxv1.ErrorReason_SERVICE_UNHEALTHY.String():
		return s.started(rule) // somebody else has started it, or it has become well
	case s.Phase == Down:
		return s.ready(rule)
	case s.HookFailure != nil:
		v := s.failed(rule, now, agboxv1.ErrorReason_HOOK_FAILED, fmt.Sprintf("Command %d of post_start_on_primary of service %s %s; its output: agbox logs %s",
			s.HookFailure.Index+1, rule.Name, s.HookFailure.Cause, s.HookFailure.ExecID))
		v.event.GetService().ExecId = s.HookFailure.ExecID
		return v
	case s.Hooks >= rule.Hooks:
		return s.ready(rule)
	case !running(o.Primary), paused(o.Primary), !o.Connected, runningHook(r, Hook{Service: rule.Name}):
		return verdict{aim: mustWait}
	}
	return verdict{aim: mustRunHook}
}

// later delays the verdict about a service that is Down. A service that has failed too
// often is left alone until the sandbox is started again.
func (s Service) later(now time.Time, v verdict) verdict {
	if s.exhausted() {
		return verdict{aim: mustWait}
	}
	if due := s.At.Add(backoff(s.Failures)); now.Before(due) {
		return verdict{aim: mustWait, wake: due}
	}
	return v
}

// exited reports whether a service that is Down has ended by itself.
func (s Service) exited() bool { return s.Reason == agboxv1.ErrorReason_SERVICE_EXITED.String() }

func (s Service) exhausted() bool { return s.Failures > serviceRestarts }

func backoff(failures uint32) time.Duration {
	return min(serviceBackoffMin<<min(max(failures, 1)-1, 10), serviceBackoffMax)
}

func (s Service) started(rule ServiceRule) verdict {
	return s.emit(agboxv1.EventType_SANDBOX_SERVICE_STARTED, &agboxv1.ServiceEventDetails{
		Name: rule.Name, Start: s.Start + 1, Failures: s.Failures,
	})
}

func (s Service) ready(rule ServiceRule) verdict {
	return s.emit(agboxv1.EventType_SANDBOX_SERVICE_READY, &agboxv1.ServiceEventDetails{
		Name: rule.Name, Start: s.Start, Failures: s.Failures, HooksDone: s.Hooks,
	})
}

// failed counts the failure, except that of a hook: a failed hook does not restart the
// service.
func (s Service) failed(rule ServiceRule, now time.Time, reason agboxv1.ErrorReason, message string) verdict {
	d := &agboxv1.ServiceEventDetails{
		Name: rule.Name, Start: s.Start, Failures: s.Failures + 1, HooksDone: s.Hooks,
		ErrorCode: reason.String(), ErrorMessage: message,
	}
	switch {
	case reason == agboxv1.ErrorReason_HOOK_FAILED, reason == agboxv1.ErrorReason_SERVICE_WITHHELD:
		d.Failures = s.Failures
	case s.Phase == Up && now.Sub(s.At) >= serviceStable:
		d.Failures = 1
	}
	return s.emit(agboxv1.EventType_SANDBOX_SERVICE_FAILED, d)
}

// HandedOver returns the events that tell whoever gets a sandbox that was made ahead of its services, in the
// order of the rules: each one that is up has been started and is ready.
func HandedOver(r Record, rules []ServiceRule) (all []*agboxv1.SandboxEvent) {
	for _, rule := range rules {
		if s := r.Services[rule.Name]; s.Phase == Up {
			started := Service{Start: s.Start - 1, Failures: s.Failures}
			all = append(all, started.started(rule).event, s.ready(rule).event)
		}
	}
	return all
}

func (Service) emit(typ agboxv1.EventType, d *agboxv1.ServiceEventDetails) verdict {
	return verdict{aim: mustEmit, event: &agboxv1.SandboxEvent{
		EventType: typ, Details: &agboxv1.SandboxEvent_Service{Service: d},
	}}
}

// dependenciesMet checks the containers, because a dependency that was well may have
// failed since.
func dependenciesMet(r Record, rule ServiceRule, o Observation) bool {
	for _, d := range rule.After {
		if d.OneShot {
			if r.Services[d.Name].Phase != Up {
				return false
			}
			continue
		}
		c := o.Services[d.Name].Container
		if !running(c) || d.Healthy && c.Health != "" && c.Health != runtime.Healthy {
			return false
		}
	}
	return true
}

func serviceExit(name string, c *runtime.Container) string {
	switch {
	case c.Error != "":
		return fmt.Sprintf("Service %s could not be started: %s", name, c.Error)
	case c.OOMKilled:
		return fmt.Sprintf("Service %s ran out of memory.", name)
	}
	return fmt.Sprintf("Service %s exited with code %d.", name, c.ExitCode)
}

// hopeless reports that a PENDING sandbox cannot become READY, and why.
func hopeless(r Record, rules Rules) (Step, bool) {
	const hook = agboxv1.ErrorReason_HOOK_FAILED
	if end, failed := commandFailed(r); failed && !r.WasReady {
		return end, true
	}
	for _, rule := range rules.Services {
		s := r.Services[rule.Name]
		if !rule.Required || s.Phase != Down {
			continue
		}
		exited := s.Reason == agboxv1.ErrorReason_SERVICE_EXITED.String() || s.Reason == agboxv1.ErrorReason_SERVICE_MISSING.String()
		failedHook := s.Reason == hook.String()
		if rule.OneShot && s.exited() || s.Failures >= serviceTries && !failedHook || !r.WasReady && !exited {
			return fail(agboxv1.ErrorReason(agboxv1.ErrorReason_value[s.Reason]), s.Message), true
		}
	}
	return Step{}, false
}

// commandFailed reports that a command of prepare or post_create has failed.
func commandFailed(r Record) (Step, bool) {
	f, list := r.PostCreate.Failure, "post_create"
	if r.Prepare.Failure != nil {
		f, list = r.Prepare.Failure, "prepare"
	}
	if f == nil {
		return Step{}, false
	}
	return fail(agboxv1.ErrorReason_HOOK_FAILED, fmt.Sprintf("Command %d of %s %s; its output: agbox logs %s", f.Index+1, list, f.Cause, f.ExecID)), true
}

// ServiceTrouble describes the problem of the required services of a READY sandbox in a
// sentence. It returns "" if there is none.
func ServiceTrouble(r Record, rules []ServiceRule) string {
	if r.State != Ready {
		return ""
	}
	for _, rule := range rules {
		s := r.Services[rule.Name]
		switch {
		case !rule.Required, s.Phase == Up, s.Phase == Starting && s.Failures == 0:
		case s.Phase == Starting:
			return fmt.Sprintf("Service %s had failed and is being started again.", rule.Name)
		case s.Phase != Down:
		case s.Reason == agboxv1.ErrorReason_HOOK_FAILED.String(), s.Reason == agboxv1.ErrorReason_SERVICE_WITHHELD.String():
			return s.Message
		case rule.OneShot && s.exited():
			return s.Message + " It is not started again until the sandbox is."
		case s.exhausted():
			return s.Message + fmt.Sprintf(" It was started %d times in a row and failed each time; see its log, then stop and start the sandbox.", serviceRestarts)
		default:
			return s.Message + " It is started again."
		}
	}
	return ""
}

func required(rules Rules) []string {
	var names []string
	for _, rule := range rules.Services {
		if rule.Required {
			names = append(names, rule.Name)
		}
	}
	return names
}

// runningServices returns the names of the services whose containers run.
func runningServices(o Observation) []string {
	var names []string
	for name, seen := range o.Services {
		if running(seen.Container) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// sooner returns the earlier of two times. Zero means never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
