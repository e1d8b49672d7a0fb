package edits

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

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
