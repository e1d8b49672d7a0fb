package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/workspace/edits"
)

// shownExecutables is how many files of one kind are shown before a question.
const shownExecutables = 10

// executables decides about what a sandbox brings that this machine would execute.
type executables struct {
	yes bool
}

func (e *executables) addFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&e.yes, "yes-executable", false, "also bring, unasked, what this machine executes or agents read")
}

// ask is a client.Agree: it shows the files, and asks on a terminal unless the flag answers.
func (e *executables) ask(ctx context.Context, a *app, folder string, found []client.Executable) (bool, error) {
	if e.yes {
		a.nameExecutables(found)
		return true, nil
	}
	a.showExecutables(folder, found)
	if a.terminal() == nil {
		return false, nil
	}
	return a.confirm(ctx, "Bring them too?")
}

// showExecutables shows files with who executes them and when: some of each kind, so that a
// flood of one kind hides no other.
func (a *app) showExecutables(folder string, found []client.Executable) {
	a.say("Look at these first. Programs of this machine execute them in %s because they are there, agents read them as instructions, or agbox reads them next:", printable(folder))
	of := make(map[string]int)
	for _, one := range found {
		of[one.Who]++
		if of[one.Who] > shownExecutables {
			continue
		}
		name := one.Path
		if one.Repository {
			name += "/"
		}
		a.sayEach("  " + one.Letter + " " + printable(name) + "  (" + one.Who + ", " + one.When + ")")
	}
	for _, who := range slices.Sorted(maps.Keys(of)) {
		if more := of[who] - shownExecutables; more > 0 {
			a.sayEach("  and " + plural(more, "other", "others") + " of " + who)
		}
	}
}

// called are files as they are called from a place in their folder.
func called(from edits.Place, found []client.Executable) []client.Executable {
	found = slices.Clone(found)
	for i := range found {
		found[i].Path = from.Name(found[i].Path)
	}
	return found
}

// nameExecutables names in one line the files that --yes-executable brings.
func (a *app) nameExecutables(found []client.Executable) {
	var names []string
	for _, one := range found[:min(len(found), shownExecutables)] {
		name := printable(one.Path)
		if one.Repository {
			name += "/"
		}
		names = append(names, one.Letter+" "+name+" ("+one.Who+")")
	}
	if more := len(found) - len(names); more > 0 {
		names = append(names, plural(more, "other", "others"))
	}
	a.say("With --yes-executable come: %s.", strings.Join(names, ", "))
}

// wereExecutables begins a sentence about files.
func wereExecutables(found []client.Executable) string {
	return plural(len(found), "file or repository that this machine executes was", "files or repositories that this machine executes were")
}
