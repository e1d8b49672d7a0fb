package edits

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// sight is what a person sees: the files of all sides, and which the diff names.
type sight struct {
	folder, sandbox, branch tree
	diff                    map[string]bool
	// killed is set after a call that was killed: what it began, the next one completes.
	killed bool
}

// oracle says what must hold of lines that are written once.
type oracle struct {
	// user and agent have the lines that each side has removed on purpose.
	user, agent map[string]bool
	// settled lines are of conflicts that the user has resolved, or of which the user said so
	// (continued).
	settled, continued map[string]bool
	// renamed lines were in files that were renamed: they may come with that. Of parted ones a side, or each,
	// has removed one when it had two.
	renamed map[string]bool
	parted  map[string]removers
	// halfway lines were in the folder when the call that brought them was killed: if the user edits them
	// before it is completed, with a new file in their place, they may come or go once more.
	halfway map[string]bool
	// unmarked has what a file was before it got markers.
	unmarked tree
}

// removers says who has removed a line; both may have.
type removers uint8

const (
	ofUser removers = 1 << iota
	ofAgent
	ofBoth = ofUser | ofAgent
)

func newOracle() *oracle {
	none := func() map[string]bool { return make(map[string]bool) }
	return &oracle{user: none(), agent: none(), settled: none(), continued: none(), renamed: none(), parted: make(map[string]removers), halfway: none(), unmarked: make(tree)}
}

func hasMarkers(text string) bool {
	return strings.Contains("\n"+text, "\n<<<<<<< ") || strings.Contains("\n"+text, "\n>>>>>>> ")
}

// written returns the lines of a file, without markers.
func written(text string) map[string]bool {
	out := make(map[string]bool)
	for line := range strings.Lines(strings.TrimPrefix(text, "l:")) {
		if line = strings.TrimSuffix(line, "\n"); !strings.HasPrefix(line, "<<<<<<<") && !strings.HasPrefix(line, "=======") && !strings.HasPrefix(line, ">>>>>>>") {
			out[line] = true
		}
	}
	return out
}

// where returns the files of each line.
func where(tr tree) map[string][]string {
	out := make(map[string][]string)
	for _, name := range slices.Sorted(maps.Keys(tr)) {
		if name == ".gitignore" {
			continue
		}
		for line := range written(tr[name]) {
			out[line] = append(out[line], name)
		}
	}
	return out
}

// edited notes what a side has removed on purpose.
func (o *oracle) edited(by *map[string]bool, before, after tree) {
	was, is := where(before), where(after)
	who := ofUser
	if by == &o.agent {
		who = ofAgent
	}
	for line, names := range was {
		if is[line] == nil {
			(*by)[line] = true
			// What a killed push left beside its place may have been edited there only.
			o.settled[line] = o.settled[line] || !slices.ContainsFunc(names, func(name string) bool { return !strings.Contains(name, ".agbox-sync-") })
		}
	}
	for line := range is {
		if was[line] == nil {
			delete(*by, line)
		}
		if len(is[line]) < len(was[line]) {
			o.parted[line] |= who
		}
	}
}

func (o *oracle) moved(text string) { maps.Copy(o.renamed, written(text)) }

// resolved notes a conflict that the user has resolved in a file.
func (o *oracle) resolved(name, marked string) {
	maps.Copy(o.settled, written(marked))
	maps.Copy(o.settled, written(o.unmarked[name]))
}

// returned notes lines of a file that the sandbox has again as it was copied or brought: the
// folder's version of that is the newer one.
func (o *oracle) returned(text string) { o.kept(text) }

// kept notes a conflict of which the user says that the folder has the result.
func (o *oracle) kept(texts ...string) {
	for _, text := range texts {
		maps.Copy(o.settled, written(text))
		maps.Copy(o.continued, written(text))
	}
}

// check says what a call of agbox, which may have been killed, did wrong. completes means that the
// call before it was killed.
func (o *oracle) check(before, after sight, completes bool) (wrong []string) {
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for name, text := range after.folder {
		if hasMarkers(text) && !hasMarkers(before.folder[name]) {
			o.unmarked[name] = before.folder[name]
		}
	}
	for name, text := range after.sandbox {
		if hasMarkers(text) && !hasMarkers(before.sandbox[name]) {
			say("the sandbox has the markers of %s", name)
		}
	}
	was, is := where(before.folder), where(after.folder)
	hadSandbox, hasSandbox, hasBranch := where(before.sandbox), where(after.sandbox), where(after.branch)
	inMarked := func(tr tree, names []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return hasMarkers(tr[name]) })
	}
	named := func(names []string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return after.diff[name] })
	}
	for line, names := range was {
		switch {
		case completes && o.settled[line] && (named(hasSandbox[line]) || slices.Contains(hasSandbox[line], "kept.o")):
			continue // a killed call was completed with what the sandbox has taken back since
		case o.renamed[line] && o.continued[line] && (hasSandbox[line] != nil || hasBranch[line] != nil || is[line] != nil || o.parted[line] != 0):
			continue // both paths of a renamed file had it, and the sides ended one each
		case o.parted[line] == ofBoth:
			continue // the same without a conflict
		}
		if is[line] == nil && !o.agent[line] && !(inMarked(before.folder, names) && o.user[line]) &&
			!((inMarked(before.folder, names) || o.renamed[line]) && hasSandbox[line] != nil) {
			say("the folder has lost %s, which nobody removed", line)
		}
	}
	for line, names := range is {
		if was[line] == nil && o.user[line] && !o.halfway[line] && !o.renamed[line] && !o.continued[line] && !inMarked(after.folder, names) {
			say("the folder has %s again, which the user removed", line)
		}
	}
	for line := range hadSandbox {
		if hasSandbox[line] == nil && !o.user[line] && !o.continued[line] && o.parted[line] != ofBoth && !(o.renamed[line] && is[line] != nil) {
			say("the sandbox has lost %s, which nobody removed", line)
		}
	}
	for line, names := range hasSandbox {
		if hadSandbox[line] == nil && o.agent[line] && !o.halfway[line] && !o.renamed[line] && !o.settled[line] {
			say("the sandbox has %s again, which it removed", line)
		}
		// Its removal is home on the branch, so a kept.o that the sandbox makes after that is a new, ignored file.
		ignored := slices.Contains(names, "out.o") || slices.Contains(names, "kept.o") && after.branch["kept.o"] == ""
		if is[line] == nil && !ignored && o.parted[line] != ofBoth && !(after.killed && o.renamed[line]) && !named(names) && !o.user[line] && !o.settled[line] && hasBranch[line] == nil {
			say("%s of the sandbox is neither at home nor named as changed", line)
		}
	}
	for line, names := range is {
		// A killed call was completed with the conflict of then, and the sandbox has taken its side back since.
		stale := completes && inMarked(after.folder, names)
		if o.agent[line] && !stale && !named(names) && !o.settled[line] && !o.renamed[line] && hasBranch[line] != nil {
			say("that the sandbox removed %s is neither at home nor named as changed", line)
		}
	}
	for line := range written(after.folder["out.o"]) {
		if hadSandbox[line] != nil {
			say("the ignored line %s has come home", line)
		}
	}
	for line := range written(after.sandbox["out.o"]) {
		if was[line] != nil {
			say("the ignored line %s has gone to the sandbox", line)
		}
	}
	return wrong
}
