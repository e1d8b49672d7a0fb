package spec

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// agent checks the agent.
func (r *resolver) agent() {
	s := r.spec.GetAgent()
	if s == nil {
		return
	}
	if cmd := s.GetCommand(); len(cmd) > 0 && cmd[0] == "" {
		r.problem([]any{"agent", "command", 0}, "The command has no name: write one first, for example [node, agent.js]")
	}
	for i, word := range s.GetCommand() {
		if strings.Contains(word, "\x00") {
			r.problem([]any{"agent", "command", i}, "The word has a NUL byte, which no command can take: remove it")
		}
	}
	r.agentEnvs(s.GetEnvs(), "agent", "envs")
	r.agentEnvs(s.GetRetry().GetReduced().GetEnvs(), "agent", "retry", "reduced", "envs")
	r.ownEnvs(s.GetEnvs(), nil, "agent", "envs")
	r.ownEnvs(s.GetRetry().GetReduced().GetEnvs(), reducedEnvs, "agent", "retry", "reduced", "envs")
	r.ownEnvs(r.spec.GetEnvs(), nil, "envs") // what the sandbox has, the program gets too
	r.withoutServices(s.GetRetry().GetReduced().GetWithoutServices())
	if r.CheckAgent != nil {
		r.CheckAgent(s, func(path []any, format string, args ...any) {
			r.problem(slices.Concat([]any{"agent"}, path), format, args...)
		})
	}
}

// withoutServices checks that there are the services that are to be stopped.
func (r *resolver) withoutServices(names []string) {
	byName := make(map[string]int)
	for i, s := range r.spec.GetServices() {
		byName[s.GetName()] = i
	}
	for i, name := range names {
		if _, known := byName[name]; !known {
			r.problem([]any{"agent", "retry", "reduced", "without_services", i}, "There is no service %.80q to stop: %s", name, r.servicesThereAre(byName))
		}
	}
}

// ownPrefix begins the names of the variables that agbox sets for the program of an agent. Of these,
// reducedEnvs are settings of the program for a reduced attempt, which a description can replace.
const ownPrefix = "AGBOX_"

var reducedEnvs = []string{"AGBOX_MAX_CONTEXT_TOKENS", "AGBOX_BROWSER", "AGBOX_MAX_CONCURRENT_TOOLS"}

// WithoutOwnEnvs returns a stored agent without the variables that a new one cannot have, for those
// that inherit from it.
func WithoutOwnEnvs(a *agboxv1.AgentSpec) *agboxv1.AgentSpec {
	a = proto.CloneOf(a)
	maps.DeleteFunc(a.GetEnvs(), func(name, _ string) bool { return isOwn(name, nil) })
	maps.DeleteFunc(a.GetRetry().GetReduced().GetEnvs(), func(name, _ string) bool { return isOwn(name, reducedEnvs) })
	return a
}

// isOwn reports whether a variable is one that agbox sets, and is not settable.
func isOwn(name string, settable []string) bool {
	return strings.HasPrefix(name, ownPrefix) && !slices.Contains(settable, name)
}

// ownEnvs refuses variables that agbox sets: it would replace the value, or the program would take it
// for one of agbox.
func (r *resolver) ownEnvs(envs map[string]string, settable []string, path ...any) {
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		if isOwn(name, settable) {
			r.problem(append(slices.Clone(path), name), "%.80q is a name for what agbox itself tells the program of an agent: leave the variable out, or choose a name that does not begin with %s", name, ownPrefix)
		}
	}
}

// agentEnvs refuses secret variables: those of agents are not encrypted.
func (r *resolver) agentEnvs(envs map[string]string, path ...any) {
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		if secrets.Named(name) && !strings.HasPrefix(name, ownPrefix) {
			r.problem(append(slices.Clone(path), name), "The variable %.80q is a secret: write it into the envs of the sandbox, where it is encrypted. The agent's program gets it too", name)
		}
	}
}
