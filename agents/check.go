package agents

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Report takes a problem of a spec. path has names of fields and indexes of lists,
// outermost first.
type Report func(path []any, format string, args ...any)

// Check reports the figures of a spec that do not fit together. The rules of the message
// have checked each figure alone.
func Check(spec *agboxv1.AgentSpec, problem Report) {
	checkHeartbeat(spec, problem)
	checkContext(spec, problem)
	checkProbes(spec, problem)
	checkDrain(spec, problem)
	checkHydration(spec, problem)
	checkTells(spec, problem)
	for i, d := range spec.GetRetry().GetDelays() {
		if d.AsDuration() < 0 {
			problem([]any{"retry", "delays", i}, "The pause is below zero: write 0s or more")
		}
	}
}

// checkHeartbeat checks that the ladder of silences ascends.
func checkHeartbeat(spec *agboxv1.AgentSpec, problem Report) {
	set, rules := spec.GetHeartbeat(), RulesOf(spec).Heartbeat
	ladder := []struct {
		name string
		set  *durationpb.Duration
		is   time.Duration
	}{
		{"interval", set.GetInterval(), rules.Interval},
		{"stale", set.GetStale(), rules.Stale},
		{"escalate", set.GetEscalate(), rules.Escalate},
		{"crashed", set.GetCrashed(), rules.Crashed},
		{"zombie", set.GetZombie(), rules.Zombie},
	}
	if rules.Interval <= 0 {
		problem([]any{"heartbeat", "interval"}, "The time between two beats must be above zero: write for example 15s")
		return
	}
	for i, step := range ladder[1:] {
		below := ladder[i]
		if step.is > below.is {
			continue
		}
		at := step
		if step.set == nil {
			at = below // step has its default
		}
		problem([]any{"heartbeat", at.name}, "%s is %s and %s is %s, but each must be longer than the one before: interval, stale, escalate, crashed, zombie",
			below.name, below.is, step.name, step.is)
		return
	}
}

// checkContext checks that a context ages before it dies.
func checkContext(spec *agboxv1.AgentSpec, problem Report) {
	set, rules := spec.GetContext(), RulesOf(spec).Context
	if rules.Aging < rules.Dying {
		return
	}
	at := "dying"
	if set.GetDying() == 0 {
		at = "aging" // dying has its default
	}
	problem([]any{"context", at}, "aging is %d and dying is %d, but dying must be the higher percentage", rules.Aging, rules.Dying)
}

// contextHook is the longest run of the context hook, which agbox-agent enforces.
const contextHook = 10 * time.Second

// maxHydration is how long an incarnation may need until it knows how to go on: three tries
// to read its checkpoint, the calls since then, and the context hook.
const maxHydration = 3*2*time.Second + 5*time.Second + contextHook

// checkHydration reports a context hook that cannot run, or that may take longer than the
// program has for its start. Without a hook nothing of the hydration is slow.
func checkHydration(spec *agboxv1.AgentSpec, problem Report) {
	hook := spec.GetContextHook()
	if len(hook) == 0 {
		return
	}
	if hook[0] == "" {
		problem([]any{"context_hook", 0}, "The command has no name: write one first, for example [memory, query]")
	}
	for i, word := range hook {
		if strings.Contains(word, "\x00") {
			problem([]any{"context_hook", i}, "The word has a NUL byte, which no command can take: remove it")
		}
	}
	p := RulesOf(spec).Probes
	bounded := spec.GetProbes().GetLiveness() != nil || spec.GetProbes().GetStartup() != nil || p.AwaitReport || p.AwaitReady
	if start := p.Startup.Period * time.Duration(p.Startup.Failures); bounded && start <= maxHydration {
		problem([]any{"probes", "startup"}, "The program has %s to start, and hydration with a context_hook may take %s: write a longer period or more failures", start, maxHydration)
	}
}

// checkDrain reports a drain that breaks the invariant: its phases take at most maxDrain
// together, and the buffer is not empty.
func checkDrain(spec *agboxv1.AgentSpec, problem Report) {
	d := RulesOf(spec).Drain
	switch {
	case min(d.PreStop, d.Step, d.Cleanup, d.Buffer) < 0: // the rules of the message refuse it
	case d.Buffer == 0:
		problem([]any{"drain", "buffer"}, "The buffer is the time in which the program can still exit before SIGKILL: write more than 0s")
	case max(d.PreStop, d.Step, d.Cleanup, d.Buffer) > maxDrain || d.Total() > maxDrain:
		problem([]any{"drain"}, "A drain takes at most %s, and these phases take %s: pre_stop %s, step %s, cleanup %s, buffer %s. Write shorter ones",
			maxDrain, d.Total(), d.PreStop, d.Step, d.Cleanup, d.Buffer)
	}
}

// checkProbes checks that a probe has one target that exists.
func checkProbes(s *agboxv1.AgentSpec, problem Report) {
	names := [...]string{"liveness", "readiness", "startup"}
	for i, p := range []*agboxv1.AgentProbe{s.GetProbes().GetLiveness(), s.GetProbes().GetReadiness(), s.GetProbes().GetStartup()} {
		path := []any{"probes", names[i]}
		targets := 0
		for _, set := range []bool{p.GetHttp() != "", len(p.GetExec()) > 0, p.GetReport()} {
			if set {
				targets++
			}
		}
		switch port, _ := endpoint(p.GetHttp()); {
		case targets > 1:
			problem(path, "http, exec and report exclude each other: keep one of them")
		case p.GetHttp() != "" && port == 0:
			problem(append(path, "http"), "%.40q has no port that exists: write PORT/PATH with a port from 1 to 65535, for example 8086/healthz", p.GetHttp())
		case len(p.GetExec()) > 0 && p.GetExec()[0] == "":
			problem(append(path, "exec", 0), "The command has no name: write one first, for example [test, -e, /tmp/ready]")
		}
		for i, word := range p.GetExec() {
			if strings.Contains(word, "\x00") {
				problem(append(path, "exec", i), "The word has a NUL byte, which no command can take: remove it")
			}
		}
	}
}

// checkTells reports a list that names nothing and something.
func checkTells(spec *agboxv1.AgentSpec, problem Report) {
	none := agboxv1.AgentNews_AGENT_NEWS_NONE
	for field, list := range map[string][]agboxv1.AgentNews{"parent": spec.GetTells().GetParent(), "init": spec.GetTells().GetInit()} {
		if len(list) > 1 && slices.Contains(list, none) {
			problem([]any{"tells", field}, "none stands alone: write [none], or leave it out of the list")
		}
	}
}
