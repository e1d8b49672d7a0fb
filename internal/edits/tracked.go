package edits

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"
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
	has, g, err := storedCommits(ctx, folder, commits)
	if len(has) == 0 || err != nil {
		return has, err
	}
	there := strings.Join(slices.Collect(maps.Keys(has)), "\n")
	out, err := g.run(strings.NewReader(there+"\n"), "rev-list", "--stdin", "--not", "--all")
	for line := range strings.Lines(string(out)) {
		delete(has, strings.TrimSpace(line))
	}
	return has, err
}

// BranchHas returns which of some stored commits a branch has. If there is no such branch, it has those
// of HEAD if head is set, and else none.
func BranchHas(ctx context.Context, folder, branch string, head bool, commits map[string]bool) (map[string]bool, error) {
	where, err := workTree(ctx, folder)
	if err != nil {
		return nil, err
	}
	g := &git{ctx: ctx, dir: folder, gitDir: where[0]}
	names := []string{"refs/heads/" + branch, "HEAD"}
	if !head {
		names = names[:1]
	}
	tip, err := g.tipOf(names...)
	if tip == "" || err != nil {
		return nil, err
	}
	return g.below(tip, commits)
}

// MergedCommits are those commits that the folder of a repository has.
type MergedCommits struct {
	// Head is the commit of HEAD, and Has are those that it has, or of which it has all versions of
	// files: as one commit, rebased or picked. There are none if the folder has only some of the files of HEAD.
	Head string
	Has  []string
	// Begun is set if one of Has is not in HEAD yet, but in a merge that is not committed.
	Begun bool
	// Lock is a file that is there while git writes files of the folder, and Locked is set if it was. A git
	// that was killed leaves it.
	Lock   string
	Locked bool
}

// FindMerged returns which of some commits the folder of a repository has.
func FindMerged(ctx context.Context, folder string, commits []string) (m MergedCommits, err error) {
	stored, g, err := storedCommits(ctx, folder, commits)
	if len(stored) == 0 || err != nil {
		return m, err
	}
	m.Lock = filepath.Join(g.gitDir, "index.lock")
	m.Locked = exists(m.Lock)
	sparse, err := g.run(nil, "config", "--type=bool", "--default=false", "--get", "core.sparseCheckout")
	if strings.TrimSpace(string(sparse)) != "false" || err != nil {
		return m, err
	}
	if m.Head, err = g.tipOf("HEAD"); m.Head == "" || err != nil {
		return m, err
	}
	below, err := g.below(m.Head, stored)
	if err == nil {
		err = g.retold(m.Head, stored, below)
	}
	if err != nil {
		return m, err
	}
	if exists(filepath.Join(g.gitDir, "MERGE_HEAD")) {
		other, err := g.tipOf("MERGE_HEAD")
		if other == "" || err != nil {
			return m, err
		}
		more, err := g.below(other, stored)
		if err != nil {
			return m, err
		}
		had := len(below)
		maps.Copy(below, more)
		m.Begun = len(below) > had
	}
	m.Has = slices.Sorted(maps.Keys(below))
	return m, nil
}

const (
	// maxRetold is of how many of the newest commits it is asked whether HEAD has their changes, and
	// maxRetoldFiles of how many files of one.
	maxRetold      = 4
	maxRetoldFiles = 5000
)

// retold adds to the commits that HEAD has below it those of which it has all versions of files: each was
// in it since the commit below both.
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
// files that a commit has changed. A removed file alone says nothing: the user may have removed it too.
func (g *git) hasChanges(head, commit string) (bool, error) {
	out, err := g.run(nil, "merge-base", head, commit)
	if err != nil {
		if status(err) == 1 {
			err = nil // nothing is below both
		}
		return false, err
	}
	base := strings.TrimSpace(string(out))
	if out, err = g.run(nil, "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", base, commit); err != nil {
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
		args := []string{"--literal-pathspecs", "log", "--full-history", "--format=", "--raw", "-r", "-z", "--no-renames", "--no-abbrev", head, "^" + base, "--"}
		if out, err = g.run(nil, append(args, some...)...); err != nil {
			return false, err
		}
		err = eachChange(out, func(name string, two twoEntries) error {
			if left[name] == two.tip {
				delete(left, name)
			}
			return nil
		})
		if err != nil {
			return false, err
		}
	}
	return len(left) == 0, nil
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
	has := maps.Clone(commits)
	all := slices.Collect(maps.Keys(commits))
	out, err := g.run(strings.NewReader(strings.Join(all, "\n")+"\n^"+tip+"\n"), "rev-list", "--stdin")
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
