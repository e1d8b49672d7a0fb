package agents

import (
	"strings"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

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
