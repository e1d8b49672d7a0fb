package edits

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/agbox/agbox/internal/filesystem"
)

// Commit merges changes into the tree of a branch and commits the result. It touches neither
// the work tree nor the index. If there are conflicts it changes nothing. A kill leaves the
// branch as it was or with the commit. Author and committer are the user's, as in git.
func Commit(ctx context.Context, changes []Change, o BranchOptions) (Committed, error) {
	dir, err := filesystem.NewTempDir("branch")
	if err != nil {
		return Committed{}, err
	}
	defer dir.Remove()
	b, err := openBranch(ctx, o, dir.Path)
	if err != nil {
		return Committed{}, err
	}
	defer b.objects.close()
	var out Committed
	decisions, err := b.decide(changes, o, &out)
	if errors.As(err, new(*excess)) && !errors.As(err, new(*HistoryError)) {
		err = &HistoryError{err}
	}
	if err != nil {
		return Committed{}, err
	}
	out.LFS = b.leftInLFS() // with what the filter of git-lfs has stored meanwhile
	out.Has, out.Tip = b.parent, b.tip
	clean, news := true, false
	out.Had = make(map[string]bool)
	for _, d := range decisions {
		out.Had[d.Path] = d.Kind == Already && b.made[d.Path] == nil
		if d.Kind == Marked {
			d.Kind, d.Why = Refused, "both have changed the same lines"
		}
		out.Outcomes = append(out.Outcomes, d.Outcome)
		clean, news = clean && !d.Conflict(), news || d.Kind != Already
	}
	if !clean {
		return out, b.inFolder(o.Folder, changes, out.Outcomes)
	}
	if out.AtHome, err = b.notOn(o.AtHome, decisions); err != nil || o.Check {
		return out, err
	}
	moves := news || len(out.Commits) > 0
	if news || b.second != "" {
		if out.Has, err = b.commit(decisions, o); err != nil {
			return out, err
		}
	}
	note := func() error {
		if o.Note == nil {
			return nil
		}
		return o.Note(out)
	}
	if !moves {
		return out, note()
	}
	// Objects that no reference has are none that git takes for work.
	if err := together(note, func() error { return b.copyObjects(out.Has, b.known...) }); err != nil {
		return out, err
	}
	out.Commit = out.Has
	return out, b.move(b.ref, b.tip, out.Commit)
}

// inFolder finds the conflicts about what is in the folder and not committed there, such as work
// that was brought to the folder before.
// Nothing is built on the branch afterwards.
func (b *branch) inFolder(dir string, changes []Change, outcomes []Outcome) error {
	head, err := b.commitOf("HEAD")
	if head == "" || b.second != "" || err != nil { // with a second parent, the bases are those of commits
		return err
	}
	if err := b.at(head); err != nil {
		return err
	}
	f, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer f.close()
	for i := range outcomes {
		o := &outcomes[i]
		at := slices.IndexFunc(changes, func(c Change) bool { return c.Path == o.Path })
		if at < 0 || !o.Conflict() {
			continue
		}
		name := cmp.Or(o.From, o.Path)
		there, err := f.state(name)
		if err != nil {
			continue // something else is in its place
		}
		committed, err := b.state(name)
		if err != nil && ignoreBlocked(err) != nil {
			return err
		}
		// The change has what git stores of the version before.
		o.InFolder = err == nil && Same(there, changes[at].Before) && !Same(committed, o.Before)
	}
	return b.skipped(outcomes)
}

// skipped finds the files in the folder that git does not look at: with the bit skip-worktree or
// assume-unchanged.
func (b *branch) skipped(outcomes []Outcome) error {
	in := *b.refs
	in.dir, in.env = b.top, append(slices.Clone(in.env), "GIT_WORK_TREE="+b.top)
	args := []string{"--literal-pathspecs", "ls-files", "-v", "-z", "--"}
	fixed := len(args)
	for _, o := range outcomes {
		if o.InFolder {
			args = append(args, b.prefix+o.Path)
		}
	}
	if len(args) == fixed {
		return nil
	}
	args = args[:min(len(args), fixed+250)] // a message names only some
	out, err := in.run(nil, args...)
	bits := make(map[string]string)
	for entry := range strings.SplitSeq(string(out), "\x00") {
		bit, name, _ := strings.Cut(entry, " ")
		bits[name] = bit
	}
	for i := range outcomes {
		bit := bits[b.prefix+outcomes[i].Path]
		outcomes[i].Skipped = outcomes[i].InFolder && (bit == "S" || bit != strings.ToUpper(bit))
	}
	return err
}

// decide takes the commits of the sandbox, and decides about its changes.
func (b *branch) decide(changes []Change, o BranchOptions, out *Committed) ([]decision, error) {
	if o.History != nil {
		if err := b.adopt(o.History, out); err != nil {
			return nil, err
		}
	}
	had, err := b.untracked(o)
	if err != nil {
		return nil, err
	}
	changes, out.Submodules = b.inSubmodules(changes)
	if changes, out.Refused, err = b.withoutRefused(changes, o.History); err != nil {
		return nil, err
	}
	if changes, out.Outside, err = b.outside(changes); err != nil {
		return nil, err
	}
	moves := slices.DeleteFunc(Renames(changes), func(c Change) bool { return c.From == "" })
	if changes, err = b.convert(changes); err != nil {
		return nil, err
	}
	for _, c := range moves {
		two, differs := b.joins[c.From]
		if b.unfit[c.Path] && b.entries[c.From].object != "" && (!differs || two.tip.object != "") {
			b.unfit[c.From] = true // the branch keeps it where it was
		}
	}
	changes, out.Unfit = leave(changes, o.History, func(name string) bool { return b.unfit[name] })
	out.Encodings = slices.Sorted(maps.Keys(b.unknown))
	if o, changes, err = b.modesOfGit(o, changes); err != nil {
		return nil, err
	}
	if b.second != "" {
		if changes, err = b.joining(o.History, changes); err != nil {
			return nil, err
		}
	}
	m := &merger{ctx: b.own.ctx, ours: b, dir: b.own.dir, label: o.Label}
	decisions, err := m.plan(changes)
	switch {
	case err == nil && b.exact:
		decisions, err = b.exactly(o.History, decisions)
	case err == nil && o.Untrack && (o.History == nil || out.Rewritten):
		err = b.untrack(o, had)
	}
	decisions = append(decisions, b.unsure...)
	out.Untracked = b.loses(decisions)
	return decisions, err
}

// adopt takes the commits of a sandbox: the work goes on top of them, or if the branch has others,
// on top of both.
func (b *branch) adopt(h *History, out *Committed) error {
	if h.Tip == h.Copied || b.prefix != "" {
		return nil
	}
	if b.tip != "" {
		if has, err := b.isAbove(b.tip, h.Tip); has && err == nil {
			out.HasTip = true
			return nil
		}
	}
	all, rewritten, err := b.receive(h)
	if out.Rewritten = rewritten; len(all) == 0 || err != nil {
		return err
	}
	b.own.limited, b.copied = true, h.Copied
	b.known = append(b.known, h.Copied)
	changes, links, submodules, blobs, err := b.touched(h)
	if err == nil {
		b.pointers, err = b.pointersOf(h, blobs)
	}
	for _, c := range submodules {
		out.Gitlinks = append(out.Gitlinks, c.Path)
	}
	slices.Sort(out.Gitlinks)
	out.Gitlinks = slices.Compact(out.Gitlinks)
	if err == nil {
		submodules, err = b.fetchable(h, changes, submodules)
	}
	if err == nil {
		err = h.Agree(changes, submodules)
	}
	out.Commits, out.Links, out.HasTip = all, links, true
	if err != nil {
		return err
	}
	ahead := b.tip == ""
	if !ahead {
		if ahead, err = b.isAbove(h.Tip, b.tip); err != nil {
			return err
		}
	}
	if !ahead {
		return b.join(h)
	}
	if b.exact = true; b.tip != "" {
		if b.joins, err = b.differing(b.tip, h.Tip); err != nil {
			return err
		}
	}
	return b.at(h.Tip)
}

// exactly makes the tree of the tip what the workspace has, in the files that the commits have
// changed: merging would bring back what a later commit has taken out.
func (b *branch) exactly(h *History, decisions []decision) ([]decision, error) {
	left, err := b.differing(h.Copied, h.Tip)
	if err != nil {
		return nil, err
	}
	later := make(map[string]bool)
	for name, two := range b.joins {
		if _, differs := left[name]; !differs && !h.neverHad(name) {
			left[name], later[name] = two, true
		}
	}
	decisions = slices.Clone(decisions)
	known := make(map[string]bool)
	for i := range decisions {
		d := &decisions[i]
		if _, differs := left[d.Path]; !differs || d.blocked {
			continue
		}
		known[d.Path] = true
		d.new, d.content, d.Why = d.After, nil, ""
		switch {
		case Same(d.old, d.After):
			d.Kind = Already
		case d.After == nil:
			d.Kind = Removed
		default:
			d.Kind = Written
		}
	}
	if err := b.storedAnew(h, known, left, b.joins); err != nil {
		return nil, err
	}
	maps.DeleteFunc(left, func(name string, two twoEntries) bool { return known[name] || b.apart(h, name, two) })
	back, err := b.turnedBack(h, left, later)
	for _, name := range slices.Sorted(maps.Keys(back)) {
		decisions = append(decisions, *back[name])
	}
	return decisions, err
}
