package edits

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
)

// untracked finds the files that git has stopped tracking in the sandbox, also if they were removed since
// and are there anew. It returns what the copied commit has of those of the base.
func (b *branch) untracked(o BranchOptions) (had map[string]treeEntry, err error) {
	b.stopped, b.lost, had = make(map[string]bool), o.Lost, make(map[string]treeEntry)
	names := slices.AppendSeq(slices.Collect(maps.Keys(o.Fresh)), maps.Keys(o.Untracked))
	if len(names) == 0 || o.Copied == "" {
		return had, nil
	}
	ever, err := b.everCommitted(o.History)
	if err != nil {
		return nil, err
	}
	for _, name := range names { // what it has committed since, and what a branch has lost by that before
		if b.joins[name].was.object != "" || ever[name] || b.made[name] != nil || o.Lost[name] {
			b.stopped[name] = true
		}
	}
	if o.Copied == b.parent {
		had = maps.Clone(b.entries)
	} else {
		if _, err := b.peel(o.Copied); err != nil {
			return had, nil //nolint:nilerr // the user's repository has another history now
		}
		out, err := b.own.run(nil, "ls-tree", "-r", "-z", "--full-tree", o.Copied)
		if err != nil {
			return nil, err
		}
		for name, e := range treeEntries(out) {
			if name, below := strings.CutPrefix(name, b.prefix); below {
				had[name] = e
			}
		}
	}
	for name := range had {
		if o.Untracked[name] != nil || o.Fresh[name] {
			b.stopped[name] = true
		}
	}
	maps.DeleteFunc(had, func(name string, _ treeEntry) bool { return o.Untracked[name] == nil })
	return had, nil
}

// everCommitted returns the paths that the commits of the sandbox change, also those that the branch has.
// It knows none if they are too many: the branch may have got them in several calls.
func (b *branch) everCommitted(h *History) (map[string]bool, error) {
	if h == nil || h.Tip == h.Copied || b.prefix != "" {
		return nil, nil
	}
	out, err := b.list("log", "-m", "--root", "--format=", "--name-only", "-z", "--no-renames", h.Tip, "^"+h.Copied)
	if failed := new(HistoryError); errors.As(err, &failed) {
		return nil, nil
	}
	return b.below(out), err
}

// untrack decides that the branch has no more what git has stopped tracking in the sandbox. What it has
// lost by that before, and has again since, the user wants.
func (b *branch) untrack(o BranchOptions, had map[string]treeEntry) error {
	var there []Change
	var changed []checkout
	for _, name := range slices.Sorted(maps.Keys(had)) {
		ours, err := b.state(name)
		if err != nil && ignoreBlocked(err) != nil {
			return err
		}
		if ours == nil || err != nil {
			continue
		}
		there = append(there, Change{Path: name, Before: ours})
		if b.entries[name] != had[name] && !Same(ours, o.Untracked[name]) {
			changed = append(changed, checkout{name, b.entries[name], o.Untracked[name]})
		}
	}
	b.copied = o.Copied // also without a History
	again, err := b.removed(there, nil, b.parent, "^"+o.Copied)
	if err != nil {
		return err
	}
	h := o.History
	if h == nil {
		h = &History{Read: o.Read}
	}
	same, err := b.holds(h, changed)
	for _, c := range there {
		d := decision{Outcome: Outcome{Change: c, Kind: Removed}, old: c.Before}
		if !same[c.Path] && slices.ContainsFunc(changed, func(one checkout) bool { return one.name == c.Path }) {
			d.Kind, d.Why = Refused, "git does not track it any more in the sandbox, and the branch has changed it"
		}
		if !again[c.Path] || !o.Lost[c.Path] {
			b.unsure = append(b.unsure, d)
		}
	}
	return err
}

// loses returns the files that the branch loses because git has stopped tracking them in the sandbox, also
// if only commits that it gets have had them.
func (b *branch) loses(decisions []decision) (names []string) {
	removed := make(map[string]bool)
	for _, d := range decisions {
		removed[d.Path] = d.Kind == Removed
	}
	for name := range b.stopped {
		if removed[name] || b.exact && b.made[name] != nil && b.entries[name].object == "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// retracked returns what a commit has of the files that a branch has lost and git tracks again in the
// sandbox.
func (b *branch) retracked(changes []Change, commit string) (map[string]treeEntry, error) {
	var names []string
	for _, c := range changes {
		if c.Retracked {
			names = append(names, b.prefix+c.Path)
		}
	}
	if len(names) == 0 || commit == "" {
		return nil, nil
	}
	if has, err := b.commitOf(commit); has == "" || err != nil {
		return nil, nil //nolint:nilerr // the user's repository has another history now
	}
	all := make(map[string]treeEntry)
	for some := range slices.Chunk(names, 250) {
		out, err := b.own.run(nil, append([]string{"--literal-pathspecs", "ls-tree", "-z", "--full-tree", commit, "--"}, some...)...)
		if err != nil {
			return nil, err
		}
		for name, e := range treeEntries(out) {
			all[strings.TrimPrefix(name, b.prefix)] = e
		}
	}
	return all, nil
}

// modesOfGit gives the versions of a workspace the modes that git has of them, if core.fileMode is
// false: then git takes no mode from the folder that was copied. A mode that the sandbox has changed
// since stays.
func (b *branch) modesOfGit(o BranchOptions, changes []Change) (BranchOptions, []Change, error) {
	if set, is := b.settings["core.filemode"]; !is || !slices.Contains([]string{"", "0", "false", "no", "off"}, strings.ToLower(set)) {
		return o, changes, nil
	}
	b.noModes = true
	h := o.History
	var copied map[string]twoEntries
	if b.exact || b.second != "" {
		var err error
		if copied, err = b.differing(h.Copied, h.Tip); err != nil {
			return o, nil, err
		}
	}
	lost, err := b.retracked(changes, o.Copied)
	if err != nil {
		return o, nil, err
	}
	of := func(name string, f *File) *File {
		for _, e := range []treeEntry{b.joins[name].tip, b.entries[name], copied[name].was, lost[name]} {
			if f != nil && !f.Link && (e.mode == "100644" || e.mode == "100755") {
				out := *f
				out.Executable = e.mode == "100755"
				return &out
			}
		}
		return f
	}
	changes = slices.Clone(changes)
	for i := range changes {
		c := &changes[i]
		name := cmp.Or(c.From, c.Path)
		if c.Before != nil && c.After != nil && c.Before.Executable == c.After.Executable {
			c.After = of(name, c.After)
		}
		c.Before = of(name, c.Before)
	}
	o.Untracked = maps.Clone(o.Untracked)
	for name, f := range o.Untracked {
		o.Untracked[name] = of(name, f)
	}
	if copied == nil {
		return o, changes, nil
	}
	all := func(files map[string]*File) map[string]*File {
		files = maps.Clone(files)
		for name, f := range files {
			if first := h.Copy[name]; h.Copy == nil || first != nil && first.Executable == f.Executable {
				files[name] = of(name, f)
			}
		}
		return files
	}
	with := *h
	with.Base, with.Copy = all(h.Base), all(h.Copy)
	if h.Home != nil {
		with.Home = func() (map[string]*File, error) {
			home, err := h.Home()
			return all(home), err
		}
	}
	o.History = &with
	return o, changes, nil
}
