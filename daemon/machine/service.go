package machine

import (
	"fmt"
	"maps"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Phase is the phase of a service according to its events.
type Phase uint8

// The phases. Containers may differ: a Waiting service may have one, and that of a
// service that is Up may have exited a moment ago.
const (
	// Waiting: not started since a request made the sandbox PENDING.
	Waiting Phase = iota
	// Starting: its start was recorded; it is not known to be well yet.
	Starting
	// Up: it is well, and its hooks have run.
	Up
	// Down: it exited, became unhealthy or could not be started, or a hook failed.
	Down
)

// Service is a service according to its events. Phase, Start, Failures and the failure
// come only from its newest SANDBOX_SERVICE_* event, which retention keeps.
type Service struct {
	Phase Phase
	// At is when the phase began.
	At time.Time
	// Start counts its starts.
	Start uint32
	// Failures counts consecutive failures without being up for serviceStable in between.
	Failures uint32
	// Reason, Message and ExecID describe the failure while Phase is Down.
	Reason, Message, ExecID string
	// Hooks is how many of its hooks have succeeded in this start. HookFailure describes
	// one that failed, while the service is Starting.
	Hooks       uint32
	HookFailure *HookFailure
}

// Hook identifies a hook, as agboxv1.HookRef does.
type Hook struct {
	Service      string
	Start, Index uint32
}

// HookFailure describes a hook that failed.
type HookFailure struct {
	ExecID string
	// Index is the position of the hook in its list, from 0.
	Index uint32
	// Cause is the end of a sentence about it.
	Cause string
}

// hookOf reads the hook from an event. It returns nil if the exec is not a hook.
func hookOf(ref *agboxv1.HookRef) *Hook {
	if ref == nil {
		return nil
	}
	return &Hook{Service: ref.GetService(), Start: ref.GetStart(), Index: ref.GetIndex()}
}

// foldService applies a SANDBOX_SERVICE_* event.
func foldService(r Record, ev *agboxv1.SandboxEvent) Record {
	d := ev.GetService()
	s := Service{At: ev.GetOccurredAt().AsTime(), Start: d.GetStart(), Failures: d.GetFailures(), Hooks: d.GetHooksDone()}
	switch ev.GetEventType() {
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED:
		s.Phase = Starting
	case agboxv1.EventType_SANDBOX_SERVICE_READY:
		s.Phase = Up
	case agboxv1.EventType_SANDBOX_SERVICE_FAILED:
		s.Phase = Down
		s.Reason, s.Message, s.ExecID = d.GetErrorCode(), d.GetErrorMessage(), d.GetExecId()
	}
	return withService(r, d.GetName(), s)
}

func withService(r Record, name string, s Service) Record {
	services := make(map[string]Service, len(r.Services)+1)
	maps.Copy(services, r.Services)
	services[name] = s
	r.Services = services
	return r
}

// servicesAnew resets the services, because a request starts the sandbox. The numbers of
// starts continue, because the exec ids of hooks depend on them.
func servicesAnew(r Record) Record {
	if len(r.Services) == 0 {
		return r
	}
	services := make(map[string]Service, len(r.Services))
	for name, s := range r.Services {
		services[name] = Service{Start: s.Start}
	}
	r.Services = services
	return r
}

// downAnew resets the services that are Down, because a revived sandbox starts them
// again.
func downAnew(r Record) Record {
	for name, s := range r.Services {
		if s.Phase == Down {
			r = withService(r, name, Service{Start: s.Start})
		}
	}
	return r
}

// foldHookEnd records the result of a hook. It ignores one of an earlier start.
func foldHookEnd(r Record, h Hook, ev *agboxv1.SandboxEvent) Record {
	d := ev.GetExec()
	var failure *HookFailure
	if ev.GetEventType() != agboxv1.EventType_EXEC_FINISHED || d.GetExitCode() != 0 {
		failure = &HookFailure{ExecID: d.GetExecId(), Index: h.Index, Cause: hookCause(ev)}
	}
	switch {
	case h.Service != "":
		return foldServiceHookEnd(r, h, failure)
	case failure == nil:
		r.PostCreate = h.Index + 1
	case r.Want == WantStopped:
		r.PostCreateStops++
		failure = nil
	}
	r.PostCreateFailure = failure
	return r
}

func foldServiceHookEnd(r Record, h Hook, failure *HookFailure) Record {
	s, known := r.Services[h.Service]
	if !known || s.Start != h.Start || s.Phase != Starting {
		return r
	}
	if failure == nil {
		s.Hooks = h.Index + 1
	}
	s.HookFailure = failure
	return withService(r, h.Service, s)
}

func hookCause(ev *agboxv1.SandboxEvent) string {
	d := ev.GetExec()
	switch {
	case d.GetErrorCode() == agboxv1.ErrorReason_COMMAND_NOT_FOUND.String():
		return "could not be run, because the image of the primary has no shell (sh)"
	case ev.GetEventType() == agboxv1.EventType_EXEC_FINISHED:
		return fmt.Sprintf("failed with exit code %d", d.GetExitCode())
	case d.GetErrorMessage() != "":
		return "failed: " + d.GetErrorMessage()
	}
	return "failed"
}

// runningHook reports whether a hook of the service runs, of any start. An empty name
// means one of post_create.
func runningHook(r Record, service string) bool {
	for _, e := range r.Execs {
		if e.Hook != nil && e.Hook.Service == service {
			return true
		}
	}
	return false
}

// ServiceRule has the rules of one service.
type ServiceRule struct {
	Name string
	// Required: the sandbox becomes READY only after this service.
	Required bool
	// Early: it is started before the sandbox is READY, which waits for its container, but
	// neither for its healthcheck nor for its hooks, and does not fail with it.
	Early bool
	// OneShot: it is Up once it has exited with code 0, and is not started again.
	OneShot bool
	// After are its dependencies.
	After []Dependency
	// Hooks is how many commands run in the primary once it is well.
	Hooks uint32
}

// Dependency is a service that must come first.
type Dependency struct {
	Name string
	// Healthy: its healthcheck must have passed, if it has one. Otherwise it must run.
	Healthy bool
	// OneShot: it must have exited with code 0.
	OneShot bool
}

// ServiceRules returns the rules of the services of a spec, in its order. Dependencies of
// a required service are required.
func ServiceRules(spec *agboxv1.CreateSpec) []ServiceRule {
	rules := make([]ServiceRule, 0, len(spec.GetServices()))
	position := make(map[string]int, len(spec.GetServices()))
	oneShot := make(map[string]bool)
	for _, s := range spec.GetServices() {
		oneShot[s.GetName()] = s.GetOneShot()
	}
	for i, s := range spec.GetServices() {
		position[s.GetName()] = i
		rule := ServiceRule{
			Name: s.GetName(), Required: s.Required == nil || s.GetRequired(), Early: spec.GetPublished() && !s.GetOneShot(), OneShot: s.GetOneShot(), Hooks: uint32(len(s.GetPostStartOnPrimary())),
		}
		for _, d := range s.GetDependsOn() {
			rule.After = append(rule.After, Dependency{
				Name: d.GetName(), Healthy: d.GetCondition() == agboxv1.DependencyCondition_DEPENDENCY_CONDITION_HEALTHY, OneShot: oneShot[d.GetName()],
			})
		}
		rules = append(rules, rule)
	}
	for changed := true; changed; {
		changed = false
		for _, rule := range rules {
			for _, d := range rule.After {
				if i, known := position[d.Name]; rule.Required && known && !rules[i].Required {
					rules[i].Required, changed = true, true
				}
			}
		}
	}
	return rules
}
