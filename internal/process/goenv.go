// This file names the environment variables that change how a Go program runs before
// its main function. The supervisor is a Go program in a container whose environment an
// image chooses: GOMEMLIMIT=1 would have it collect garbage for ever.

package process

import (
	"slices"
	"strings"
)

// GoVariables are the variables that Go's runtime reads at the start of a program.
var GoVariables = []string{"GOCOVERDIR", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK"}

// SplitGoVariables separates the entries of an environment ("NAME=value") that set one of Names.
func SplitGoVariables(env []string) (rest, own []string) {
	for _, entry := range env {
		if isGoVariable(entry) {
			own = append(own, entry)
		} else {
			rest = append(rest, entry)
		}
	}
	return rest, own
}

func isGoVariable(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	return slices.Contains(GoVariables, name)
}

// ownGoVariables is what the supervisor needs that is not Go's default. Without profstackdepth=0,
// each of its threads has 2 KB for the stacks of a profiler that it does not have.
var ownGoVariables = map[string]string{"GODEBUG": "profstackdepth=0"}

// SupervisorGoVariables sets all Names: to what the supervisor needs, or to nothing, which Go takes
// for its defaults. An engine cannot remove a variable that an image sets.
func SupervisorGoVariables() []string {
	set := make([]string, len(GoVariables))
	for i, n := range GoVariables {
		set[i] = n + "=" + ownGoVariables[n]
	}
	return set
}
