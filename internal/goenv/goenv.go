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

// Blank sets all Names to nothing, which Go takes for its defaults. An engine cannot
// remove a variable that an image sets.
func Blank() []string {
	blank := make([]string, len(Names))
	for i, n := range Names {
		blank[i] = n + "="
	}
	return blank
}
