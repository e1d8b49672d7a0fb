package machine

import (
	"fmt"
	"maps"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Phase is how far a service has come, as its events tell.
type Phase uint8

// The phases. Containers say more: a Waiting service may have one, a Ready one's
// may have died a moment ago.
const (
	// Waiting: nothing was begun since the sandbox became PENDING by a request.
	Waiting Phase = iota
	// Starting: its start was decided; it is not known to be well yet.
	Starting
	// Up: it was well, and its hooks have run.
	Up
	// Down: it died, turned unhealthy or could not be started, or a hook failed.
	Down
)

// Service is a service as its events tell it. Phase, Start, Failures and the
// failure come from its newest SANDBOX_SERVICE_* event alone, which retention
// keeps.
type Service struct {
	Phase Phase
	// At is when the phase began.
	At time.Time
	// Start counts its starts.
	Start uint32
	// Failures counts how often in a row it went down without being up for serviceStable.
	Failures uint32
	// Reason, Message and ExecID tell of the failure while Phase is Down.
	Reason, Message, ExecID string
	// Hooks is how many of its hooks have succeeded in this start, and HookFailure,
	// while it is Starting, tells of one that has not.
	Hooks       uint32
	HookFailure *HookFailure
}

// Hook names one of a sandbox's own commands; as in agboxv1.HookRef.
type Hook struct {
	Service      string
	Start, Index uint32
}

// HookFailure is how a hook ended that did not succeed.
type HookFailure struct {
	ExecID string
	// Index is the position of the hook in its list, from 0.
	Index uint32
	// Cause ends a sentence about it.
	Cause string
}

// hookOf reads a hook from an event; nil if the exec is none.
func hookOf(ref *agboxv1.HookRef) *Hook {
	if ref == nil {
		return nil
	}
	return &Hook{Service: ref.GetService(), Start: ref.GetStart(), Index: ref.GetIndex()}
}

// foldService takes over what a SANDBOX_SERVICE_* event says.
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

// servicesAnew forgets how the services stood: the sandbox is started by a request.
// Starts are counted on, because the ids of hooks are made from them.
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

// downAnew does the same for the services that are Down: a revived sandbox tries
// them again.
func downAnew(r Record) Record {
	for name, s := range r.Services {
		if s.Phase == Down {
			r = withService(r, name, Service{Start: s.Start})
		}
	}
	return r
}

// foldHookEnd notes how a hook ended. One of an earlier start does not count.
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

// runningHook tells whether a hook of the service runs, of whichever start; with an
// empty name, one of post_create.
func runningHook(r Record, service string) bool {
	for _, e := range r.Execs {
		if e.Hook != nil && e.Hook.Service == service {
			return true
		}
	}
	return false
}

// ServiceRule is what the spec says of a service's life.
type ServiceRule struct {
	Name string
	// Required: the sandbox is READY only with it.
	Required bool
	// After are the services that come first.
	After []Dependency
	// Hooks is how many commands run in the primary once it is well.
	Hooks uint32
}

// Dependency is a service that comes first.
type Dependency struct {
	Name string
	// Healthy: its healthcheck has passed, if it has one; otherwise it runs.
	Healthy bool
}

// ServiceRules reads the rules from a spec, in its order. What a required service
// depends on is required.
func ServiceRules(spec *agboxv1.CreateSpec) []ServiceRule {
	rules := make([]ServiceRule, 0, len(spec.GetServices()))
	position := make(map[string]int, len(spec.GetServices()))
	for i, s := range spec.GetServices() {
		position[s.GetName()] = i
		rule := ServiceRule{
			Name: s.GetName(), Required: s.Required == nil || s.GetRequired(), Hooks: uint32(len(s.GetPostStartOnPrimary())),
		}
		for _, d := range s.GetDependsOn() {
			rule.After = append(rule.After, Dependency{
				Name: d.GetName(), Healthy: d.GetCondition() == agboxv1.DependencyCondition_DEPENDENCY_CONDITION_HEALTHY,
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
