// Package goenv names the environment variables that change how a Go program runs before
// its main function. The supervisor is a Go program in a container whose environment an
// image chooses: GOMEMLIMIT=1 would have it collect garbage for ever.
package goenv

import (
	"slices"
	"strings"
)

// Names are the variables that Go's runtime reads at the start of a program.
var Names = []string{"GOCOVERDIR", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GORACE", "GOTRACEBACK"}

// Split separates the entries of an environment ("NAME=value") that set one of Names.
func Split(env []string) (rest, own []string) {
	for _, entry := range env {
		if isOwn(entry) {
			own = append(own, entry)
		} else {
			rest = append(rest, entry)
		}
	}
	return rest, own
}

func isOwn(entry string) bool {
	name, _, _ := strings.Cut(entry, "=")
	return slices.Contains(Names, name)
}

// own is what the supervisor needs that is not Go's default. Without profstackdepth=0,
// each of its threads has 2 KB for the stacks of a profiler that it does not have.
var own = map[string]string{"GODEBUG": "profstackdepth=0"}

// ForSupervisor sets all Names: to what the supervisor needs, or to nothing, which Go takes
// for its defaults. An engine cannot remove a variable that an image sets.
func ForSupervisor() []string {
	set := make([]string, len(Names))
	for i, n := range Names {
		set[i] = n + "=" + own[n]
	}
	return set
}
