package edits

import (
	"bytes"
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Tracked returns the paths below a folder that git tracks, relative to it, with those of its
// submodules. Nothing of the repository is executed. The folder has no symbolic links.
func Tracked(ctx context.Context, folder string) ([]string, error) {
	where, err := workTree(ctx, folder)
	if err != nil {
		return nil, err
	}
	g := &git{ctx: ctx, dir: folder, gitDir: where[0], env: []string{"GIT_WORK_TREE=" + where[2]}}
	out, err := g.run(nil, "ls-files", "-z", "--recurse-submodules")
	if err != nil || len(out) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), nil
}

// HasCommits returns which commits a reference or HEAD of the repository around a folder has, or
// one of its work trees. What git only has not removed yet counts as gone. Of an object that is no
// commit, such as an annotated tag, it counts that it is stored.
func HasCommits(ctx context.Context, folder string, commits []string) (map[string]bool, error) {
	stored, g, err := storedCommits(ctx, folder, commits)
	if len(stored) == 0 || err != nil {
		return stored, err
	}
	return g.within(stored, "--not", "--all")
}

// BranchHas returns what HasCommits does, and which of the commits a branch has. If there is no such
// branch, it has those of HEAD if head is set, and else none.
func BranchHas(ctx context.Context, folder, branch string, head bool, commits []string) (has, on map[string]bool, err error) {
	stored, g, err := storedCommits(ctx, folder, commits)
	if len(stored) == 0 || err != nil {
		return stored, nil, err
	}
	names := []string{"refs/heads/" + branch, "HEAD"}
	if !head {
		names = names[:1]
	}
	err = together(
		func() (err error) {
			has, err = g.within(stored, "--not", "--all")
			return err
		},
		func() error {
			tip, err := g.tipOf(names...)
			if tip != "" && err == nil {
				on, err = g.below(tip, stored)
			}
			return err
		},
	)
	return has, on, err
}

// MergedCommits are those commits that the folder of a repository has.
type MergedCommits struct {
	// Head is the commit of HEAD, and Has are those that it has, or of which it has had all versions of
	// files: as one commit, rebased or picked. There are none if the folder may not have the files of
	// HEAD: only some of them are checked out, or a merge, a rebase or the like is not done yet (Begun).
	Head  string
	Has   []string
	Begun bool
	// Lock is a file that is there while git writes files of the folder, and Locked is set if it was. A git
	// that was killed leaves it.
	Lock   string
	Locked bool
}

// Head returns MergedCommits without Has.
func Head(ctx context.Context, folder string) (MergedCommits, error) {
	m, _, err := headOf(ctx, folder)
	return m, err
}

func headOf(ctx context.Context, folder string) (m MergedCommits, g *git, err error) {
	where, err := workTree(ctx, folder)
	if err != nil {
		return m, nil, err
	}
	g = &git{ctx: ctx, dir: folder, gitDir: where[0]}
	m.Lock = filepath.Join(g.gitDir, "index.lock")
	m.Locked = exists(m.Lock)
	for _, name := range []string{"MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "rebase-merge", "rebase-apply"} {
		m.Begun = m.Begun || exists(filepath.Join(g.gitDir, name))
	}
	m.Head, err = g.tipOf("HEAD")
	return m, g, err
}

// FindMerged returns which of some commits the folder of a repository has.
func FindMerged(ctx context.Context, folder string, commits []string) (MergedCommits, error) {
	m, g, err := headOf(ctx, folder)
	if m.Head == "" || m.Begun || err != nil {
		return m, err
	}
	stored, _, err := storedCommits(ctx, folder, commits)
	if len(stored) == 0 || err != nil {
		return m, err
	}
	sparse, err := g.run(nil, "config", "--type=bool", "--default=false", "--get", "core.sparseCheckout")
	if strings.TrimSpace(string(sparse)) != "false" || err != nil {
		return m, err
	}
	below, err := g.below(m.Head, stored)
	if err != nil {
		return m, err
	}
	within, cancel := context.WithTimeout(ctx, longestRetold)
	defer cancel()
	bounded := *g
	bounded.ctx = within
	_ = bounded.retold(m.Head, stored, below) // then more count as not merged, as most do
	m.Has = slices.Sorted(maps.Keys(below))
	return m, ctx.Err()
}

const (
	// maxRetold is of how many of the newest commits it is asked whether HEAD has their changes, and
	// maxRetoldFiles of how many files of one. longestRetold is how long all that may take.
	maxRetold      = 4
	maxRetoldFiles = 5000
	longestRetold  = 3 * time.Second
)

// retold adds to the commits that HEAD has below it those of which it has had all versions of files since
// the commit below both.
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

// hasChanges reports whether the history of head since the commit below both has had all versions of
// files that a commit has changed, and head still has one of them: else they may be taken back. A
// removed file alone says nothing: the user may have removed it too.
func (g *git) hasChanges(head, commit string) (bool, error) {
	out, err := g.run(nil, "merge-base", head, commit)
	if err != nil {
		if status(err) == 1 {
			err = nil // nothing is below both
		}
		return false, err
	}
	base := strings.TrimSpace(string(out))
	left, err := g.changes(base, commit)
	if len(left) > maxRetoldFiles || err != nil {
		return false, err
	}
	differs, err := g.changes(head, commit)
	if err != nil {
		return false, err
	}
	still := false
	for name, e := range left {
		if _, other := differs[name]; !other {
			still = still || e.object != ""
			delete(left, name)
		}
	}
	if !still {
		return false, nil
	}
	for some := range slices.Chunk(slices.Sorted(maps.Keys(left)), 250) {
		commits, err := g.run(nil, slices.Concat([]string{"--literal-pathspecs", "rev-list", "--full-history", head, "^" + base, "--"}, some)...)
		if err != nil {
			return false, err
		}
		args := []string{"--literal-pathspecs", "diff-tree", "--stdin", "--no-commit-id", "-r", "-z", "--no-renames", "--no-abbrev", "--"}
		if out, err = g.run(bytes.NewReader(commits), append(args, some...)...); err != nil {
			return false, err
		}
		err = eachChange(out, func(name string, two twoEntries) error {
			if left[name] == two.tip {
				delete(left, name)
			}
			return nil
		})
		if err != nil || slices.ContainsFunc(some, func(name string) bool { _, is := left[name]; return is }) {
			return false, err
		}
	}
	return true, nil
}

// changes returns what a commit has of the files in which it differs from another one.
func (g *git) changes(from, to string) (map[string]treeEntry, error) {
	out, err := g.run(nil, "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", from, to)
	if err != nil {
		return nil, err
	}
	all := make(map[string]treeEntry)
	return all, eachChange(out, func(name string, two twoEntries) error {
		all[name] = two.tip
		return nil
	})
}

// tipOf returns the commit of the first of some references that is there; empty if there is none.
func (g *git) tipOf(references ...string) (string, error) {
	for _, name := range references {
		tip, err := g.run(nil, "rev-parse", "--verify", "-q", name+"^{commit}")
		if status(err) != 1 {
			return strings.TrimSpace(string(tip)), err
		}
	}
	return "", nil
}

// below returns which of some stored commits a commit has below it.
func (g *git) below(tip string, commits map[string]bool) (map[string]bool, error) {
	return g.within(commits, "^"+tip)
}

// within returns which of some stored commits others have below them.
func (g *git) within(commits map[string]bool, others ...string) (map[string]bool, error) {
	has := maps.Clone(commits)
	all := strings.Join(slices.Collect(maps.Keys(commits)), "\n")
	out, err := g.run(strings.NewReader(all+"\n"), append([]string{"rev-list", "--stdin"}, others...)...)
	for line := range strings.Lines(string(out)) {
		delete(has, strings.TrimSpace(line))
	}
	return has, err
}

// StoresCommits returns which commits the repository around a folder has, also if nothing names them.
func StoresCommits(ctx context.Context, folder string, commits []string) (map[string]bool, error) {
	has, _, err := storedCommits(ctx, folder, commits)
	return has, err
}

func storedCommits(ctx context.Context, folder string, commits []string) (map[string]bool, *git, error) {
	where, err := workTree(ctx, folder)
	if err != nil {
		return nil, nil, err
	}
	g := &git{ctx: ctx, dir: folder, gitDir: where[0]}
	out, err := g.run(strings.NewReader(strings.Join(commits, "\n")+"\n"), "cat-file", "--batch-check=%(objectname) %(objecttype)")
	has := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		if name, kind, _ := strings.Cut(strings.TrimSpace(line), " "); kind != "missing" {
			has[name] = true
		}
	}
	return has, g, err
}

// FilesOf returns the paths of the files that a commit of the repository around a folder has.
func FilesOf(ctx context.Context, folder, commit string) (map[string]bool, error) {
	where, err := workTree(ctx, folder)
	if err != nil {
		return nil, err
	}
	g := &git{ctx: ctx, dir: folder, gitDir: where[0]}
	out, err := g.run(nil, "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit)
	all := make(map[string]bool)
	for name := range strings.SplitSeq(string(out), "\x00") {
		all[name] = true
	}
	return all, err
}

// LeaveUntracked drops what is not among the files of the base and git does not track.
func (s *Scan) LeaveUntracked(ctx context.Context, folder string, base map[string]*File) error {
	fresh := func(name string) bool { return base[name] == nil }
	if !slices.ContainsFunc(s.Large, fresh) && !slices.ContainsFunc(slices.Collect(maps.Keys(s.Changed)), fresh) {
		return nil
	}
	names, err := Tracked(ctx, folder)
	if err != nil {
		return err
	}
	known := make(map[string]bool, len(names))
	for _, name := range names {
		known[name] = true
	}
	s.Large = slices.DeleteFunc(s.Large, func(name string) bool { return fresh(name) && !known[name] })
	maps.DeleteFunc(s.Changed, func(name string, _ *File) bool { return fresh(name) && !known[name] })
	return nil
}
