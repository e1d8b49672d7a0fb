package edits

import (
	"context"
	"maps"
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
	has, err := g.stored(commits)
	return has, g, err
}

func (g *git) stored(commits []string) (map[string]bool, error) {
	out, err := g.run(strings.NewReader(strings.Join(commits, "\n")+"\n"), "cat-file", "--batch-check=%(objectname) %(objecttype)")
	has := make(map[string]bool)
	for line := range strings.Lines(string(out)) {
		if name, kind, _ := strings.Cut(strings.TrimSpace(line), " "); kind != "missing" {
			has[name] = true
		}
	}
	return has, err
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
