package edits

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agbox/agbox/internal/confined"
)

// MergedCommits say what the folder of a repository has of some commits.
type MergedCommits struct {
	// Head is the commit of HEAD, and Has are those commits that it has, or of which it has had all
	// versions of files since they were made: as one commit, rebased or picked. There are none if only
	// some of the files of HEAD are checked out.
	Head string
	Has  []string
	// Held are those that the folder may get or lose by what git is in the middle of, such as a merge
	// with conflicts, when that is completed or aborted.
	Held []string
	// State is equal for two calls if neither HEAD nor what git is in the middle of has changed.
	State string
	// Lock is a file that is there while git writes files of the folder, and Locked is set if it was. A git
	// that was killed leaves it.
	Lock   string
	Locked bool
}

// headState is HEAD, and what git is in the middle of.
type headState struct {
	head string
	// before is HEAD before a rebase or a series of picks, to which git goes back if that is aborted, and
	// coming are commits that are being merged or picked.
	before string
	coming []string
	// sparse is set if only some files are checked out.
	sparse bool
}

// Head returns MergedCommits without Has and Held.
func Head(ctx context.Context, folder string) (MergedCommits, error) {
	m, _, _, err := headOf(ctx, folder)
	return m, err
}

func headOf(ctx context.Context, folder string) (m MergedCommits, h headState, g *git, err error) {
	where, err := workTree(ctx, folder)
	if err != nil {
		return m, h, nil, err
	}
	g = &git{ctx: ctx, dir: folder, gitDir: where[0]}
	m.Lock = filepath.Join(g.gitDir, "index.lock")
	m.Locked = exists(m.Lock)
	h.coming = slices.Concat(g.commitsIn("MERGE_HEAD"), g.commitsIn("CHERRY_PICK_HEAD"))
	for _, name := range []string{"rebase-merge/orig-head", "rebase-apply/orig-head", "sequencer/head"} {
		for _, commit := range g.commitsIn(name) {
			h.before = commit
		}
	}
	if h.before == "" && exists(filepath.Join(g.gitDir, "rebase-apply/applying")) { // patches of mails
		if h.before, err = g.tipOf("ORIG_HEAD"); err != nil {
			return m, h, g, err
		}
	}
	err = together(
		func() (err error) {
			h.head, err = g.tipOf("HEAD")
			return err
		},
		func() error {
			sparse, err := g.run(nil, "config", "--type=bool", "--default=false", "--get", "core.sparseCheckout")
			h.sparse = strings.TrimSpace(string(sparse)) != "false"
			return err
		},
	)
	m.Head = h.head
	m.State = strings.Join(append([]string{h.head, h.before, map[bool]string{true: "sparse"}[h.sparse]}, h.coming...), " ")
	return m, h, g, err
}

// commitsIn returns the commits that a file of the repository names, none if there is no such file.
func (g *git) commitsIn(name string) []string {
	text, err := confined.Read(g.gitDir, name, 64<<10)
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(strings.Fields(string(text)), func(word string) bool {
		return len(word) != 40 && len(word) != 64 || strings.Trim(word, "0123456789abcdef") != ""
	})
}

// FindMerged returns which of some commits the folder of a repository has.
func FindMerged(ctx context.Context, folder string, commits []string) (MergedCommits, error) {
	m, h, g, err := headOf(ctx, folder)
	if m.Head == "" || err != nil {
		return m, err
	}
	stored, err := g.stored(commits)
	if len(stored) == 0 || err != nil {
		return m, err
	}
	has, err := g.had(h.head, stored)
	if err != nil {
		return m, err
	}
	held := make(map[string]bool)
	if h.before != "" && h.before != h.head {
		before, err := g.had(h.before, stored)
		if err != nil {
			return m, err
		}
		for c := range stored {
			held[c] = has[c] != before[c]
		}
	}
	for _, tip := range h.coming {
		below, err := g.below(tip, stored)
		if err != nil {
			return m, err
		}
		for c := range below {
			held[c] = held[c] || !has[c]
		}
	}
	maps.DeleteFunc(held, func(_ string, is bool) bool { return !is })
	m.Held = slices.Sorted(maps.Keys(held))
	if !h.sparse {
		maps.DeleteFunc(has, func(c string, _ bool) bool { return held[c] })
		m.Has = slices.Sorted(maps.Keys(has))
	}
	return m, nil
}

// had returns which of some stored commits a commit has below it, or has had as others.
func (g *git) had(tip string, stored map[string]bool) (map[string]bool, error) {
	has, err := g.below(tip, stored)
	if err != nil {
		return nil, err
	}
	return has, g.retold(tip, stored, has)
}

const (
	// maxRetold is of how many of the newest commits it is asked whether HEAD has had their changes,
	// maxRetoldFiles of how many files of one, and maxRetoldCommits in how many commits below HEAD.
	maxRetold        = 4
	maxRetoldFiles   = 5000
	maxRetoldCommits = "--max-count=2000"
)

// retold adds to the commits that HEAD has below it those of which it has had all versions of files since
// they were made.
func (g *git) retold(head string, commits, below map[string]bool) error {
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(commits)), func(c string) bool { return below[c] })
	if len(others) == 0 {
		return nil
	}
	beyond, err := g.run(strings.NewReader(head+"\n^"+strings.Join(others, "\n^")+"\n"), "rev-list", "--stdin", "--max-count=1")
	if len(beyond) == 0 || err != nil {
		return err
	}
	out, err := g.run(strings.NewReader(strings.Join(others, "\n")+"\n^"+head+"\n"), "rev-list", "--stdin", "--topo-order")
	if err != nil {
		return err
	}
	tried := 0
	for line := range strings.Lines(string(out)) {
		c := strings.TrimSpace(line)
		if !commits[c] || below[c] {
			continue
		}
		if tried++; tried > maxRetold {
			break
		}
		has, err := g.hasChanges(head, c)
		if err != nil {
			return err
		}
		if has {
			older, err := g.below(c, commits)
			if err != nil {
				return err
			}
			maps.Copy(below, older)
		}
	}
	return nil
}

// hasChanges reports whether head has, or has had since a commit was made, all versions of files that the
// commit has changed since the one below both. What it had before is no merge of it: the user may have had
// one of the versions, and taken it back. A removed file alone says nothing: the user may have removed it
// too.
func (g *git) hasChanges(head, commit string) (bool, error) {
	out, err := g.run(nil, "merge-base", head, commit)
	if err != nil {
		if status(err) == 1 {
			err = nil // nothing is below both
		}
		return false, err
	}
	base := strings.TrimSpace(string(out))
	made, err := g.run(nil, "rev-list", "--max-count=1", "--timestamp", commit)
	if err != nil {
		return false, err
	}
	since, _, _ := strings.Cut(string(made), " ")
	bounded := *g
	bounded.limited = true
	out, err = bounded.run(nil, "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", base, commit)
	if errors.As(err, new(*excess)) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	left, written := make(map[string]treeEntry), false
	err = eachChange(out, func(name string, two twoEntries) error {
		left[name], written = two.tip, written || two.tip.object != ""
		return nil
	})
	if !written || len(left) > maxRetoldFiles || err != nil {
		return false, err
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(left)), 250) {
		has, err := g.hasVersions(head, base, commit, "--since="+since, some, left)
		if !has || err != nil {
			return false, err
		}
	}
	return true, nil
}

// hasVersions is hasChanges for some of the files.
func (g *git) hasVersions(head, base, commit, since string, names []string, versions map[string]treeEntry) (bool, error) {
	list := func(stdin []byte, args ...string) ([]byte, error) {
		args = slices.Concat([]string{"--literal-pathspecs"}, args, []string{"--"}, names)
		return g.run(bytes.NewReader(stdin), args...)
	}
	other, err := list(nil, "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", head, commit)
	if err != nil {
		return false, err
	}
	left := make(map[string]bool)
	err = eachChange(other, func(name string, _ twoEntries) error {
		left[name] = true
		return nil
	})
	if len(left) == 0 || err != nil {
		return err == nil, err
	}
	commits, err := list(nil, "rev-list", "--full-history", maxRetoldCommits, since, head, "^"+base)
	if err != nil {
		return false, err
	}
	changes, err := list(commits, "diff-tree", "--stdin", "--no-commit-id", "-r", "-z", "--no-renames", "--no-abbrev")
	if err != nil {
		return false, err
	}
	err = eachChange(changes, func(name string, two twoEntries) error {
		if versions[name] == two.tip {
			delete(left, name)
		}
		return nil
	})
	return len(left) == 0, err
}
