package edits

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
)

// apart reports whether the workspace says nothing about a file that commits have changed. If it
// was left out of the copy and they remove it, a new file in its place is not its next version.
func (b *branch) apart(h *History, name string, two twoEntries) bool {
	gone := two.was.object != "" && two.tip.object == ""
	return (b.stopped[name] || h.Apart[name]) && !(gone && b.leftOut(h, name))
}

// neverHad reports whether the workspace never had a file: then that it has none says nothing about
// commits from before the copy.
func (h *History) neverHad(name string) bool {
	return h.Base[name] == nil && h.Copy != nil && h.Copy[name] == nil
}

// leftOut reports whether the workspace never had a file, because the copy left it out. If not, the
// folder had none, such as one that was removed there and not committed, or is not checked out.
func (b *branch) leftOut(h *History, name string) bool {
	if !h.neverHad(name) || !usable(name) {
		return false
	}
	return h.Excluded != nil && h.Excluded(name) || HasFile(filepath.Join(b.top, b.prefix), name)
}

// turnedBack decides about files that commits have changed and that are in the workspace as they
// were before: on the branch, or when they were copied in. Each pair begins with the latter, but
// for those in later.
func (b *branch) turnedBack(h *History, all map[string]twoEntries, later map[string]bool) (map[string]*decision, error) {
	back := make(map[string]*decision)
	var asked []checkout
	for name, two := range all {
		if b.anew[name] {
			if mode := h.Base[name].Mode(); mode != two.tip.mode {
				tip, err := b.version(two.tip)
				if err != nil {
					return nil, err
				}
				back[name] = put(name, tip, treeEntry{mode, two.tip.object})
			}
			continue
		}
		var d *decision
		var err error
		if last, differs := b.joins[name]; differs {
			d, _, err = b.reverted(h, name, last, false)
		}
		if d == nil && err == nil {
			var unless *checkout
			if d, unless, err = b.reverted(h, name, two, !later[name]); unless != nil {
				asked = append(asked, *unless)
			}
		}
		if err != nil {
			return nil, err
		}
		if d != nil {
			back[name] = d
		}
	}
	same, untried, err := b.checksOut(asked)
	maps.DeleteFunc(back, func(name string, _ *decision) bool { return same[name] || untried[name] })
	for _, name := range slices.Sorted(maps.Keys(b.unread)) {
		if back[name] != nil && err == nil {
			err = &HistoryError{fmt.Errorf("they have %q otherwise than the workspace, which %s", name, b.unread[name])}
		}
	}
	return back, err
}

// reverted decides about a file that a commit has changed and that is in the workspace as it was
// copied in. copied means that two begins with that. The decision does not count if git writes
// the file unless has of its entry.
func (b *branch) reverted(h *History, name string, two twoEntries, copied bool) (d *decision, unless *checkout, err error) {
	now, was := h.Base[name], two.was
	if was.mode == "160000" || two.tip.mode == "160000" {
		return nil, nil, nil
	}
	tip, err := b.version(two.tip)
	if err != nil {
		return nil, nil, err
	}
	if tip == nil && was.object != "" && b.leftOut(h, name) {
		return put(name, nil, was), nil, nil // only left out of the copy: nobody has removed it
	}
	if Same(tip, now) || (now == nil) != (was.object == "") {
		return nil, nil, nil
	}
	d = &decision{Outcome: Outcome{Change: Change{Path: name, Before: tip}, Kind: Removed}, old: tip}
	if now == nil {
		return d, nil, nil
	}
	f, err := b.objects.file(was)
	switch {
	case err != nil:
		return nil, nil, err
	case f.Sum == now.Sum:
	case copied && tip != nil && tip.Link == now.Link && tip.Sum == now.Sum && Same(now, h.Copy[name]):
		was = two.tip // only the mode is as it was copied in
	case copied && Same(now, h.Copy[name]):
		unless = &checkout{name, two.tip, now}
		now = f // what the copy had beside that is stored in another way, or not committed at home
	default:
		return nil, nil, nil // nothing has this version: that of the commit stays
	}
	d.Kind, d.new, d.object = Written, now, was.object
	d.After = now
	return d, unless, nil
}

// put decides to write a file that the repository has; nil for a submodule.
func put(name string, old *File, e treeEntry) *decision {
	if e.mode == "160000" {
		return nil
	}
	f := &File{Link: e.mode == "120000", Executable: e.mode == "100755"}
	return &decision{Outcome: Outcome{Change: Change{Path: name, Before: old, After: f}, Kind: Written}, old: old, new: f, object: e.object}
}

// version describes an entry of a tree; nil if there is none.
func (b *branch) version(e treeEntry) (*File, error) {
	if e.object == "" {
		return nil, nil
	}
	return b.objects.file(e)
}
