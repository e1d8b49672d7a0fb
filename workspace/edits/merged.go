package edits

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/agbox/agbox/internal/filesystem"
)

// MergedCommits say what the folder of a repository has of some commits.
type MergedCommits struct {
	// Head is the commit of HEAD, and Has are those commits that it has, or of which it has had all
	// versions of files since they were made: as one commit, rebased or picked. There are none if only
	// some of the files of HEAD are checked out.
	Head string
	Has  []string
	// Held are those that the folder may get or lose because git is in the middle of a merge, a pick or a
	// rebase: all but those that HEAD has, and keeps if that is aborted.
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
	// middle is set if git is in the middle of something. before is then what HEAD becomes if that is aborted:
	// more than one if a rebase has stopped, and a pick has begun.
	middle bool
	before []string
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
	for _, name := range []string{"MERGE_HEAD", "CHERRY_PICK_HEAD", "rebase-merge", "rebase-apply", "sequencer/todo"} {
		h.middle = h.middle || exists(filepath.Join(g.gitDir, name))
	}
	for _, name := range []string{"rebase-merge/orig-head", "rebase-apply/orig-head", "sequencer/head"} {
		text, err := filesystem.ReadWithin(g.gitDir, name, 1<<10)
		if name := strings.TrimSpace(string(text)); err == nil && h.middle && strings.Trim(name, "0123456789abcdef") == "" {
			h.before = append(h.before, name)
		}
	}
	if exists(filepath.Join(g.gitDir, "rebase-apply/applying")) { // patches of mails
		h.before = append(h.before, "ORIG_HEAD")
	}
	err = together(
		func() (err error) {
			h.head, err = g.tipOf("HEAD")
			return err
		},
		func() error {
			for i, name := range h.before {
				tip, err := g.tipOf(name)
				if h.before[i] = tip; err != nil {
					return err
				}
			}
			return nil
		},
		func() error {
			sparse, err := g.run(nil, "config", "--type=bool", "--default=false", "--get", "core.sparseCheckout")
			h.sparse = strings.TrimSpace(string(sparse)) != "false"
			return err
		},
	)
	m.Head = h.head
	m.State = fmt.Sprint(h)
	return m, h, g, err
}

// FindMerged returns which of some commits the folder of a repository has. With an error, all of them are
// Held if git is in the middle of something.
func FindMerged(ctx context.Context, folder string, commits []string) (MergedCommits, error) {
	m, h, g, err := headOf(ctx, folder)
	if h.middle {
		m.Held = commits
	}
	if m.Head == "" || err != nil {
		return m, err
	}
	stored, err := g.stored(commits)
	if err != nil {
		return m, err
	}
	has, err := g.had(h.head, stored)
	for _, tip := range h.before {
		var before map[string]bool
		if err == nil && tip != "" && tip != h.head {
			before, err = g.had(tip, stored)
			maps.DeleteFunc(has, func(c string, _ bool) bool { return !before[c] })
		}
	}
	if err != nil {
		return m, err
	}
	m.Held = nil
	if h.middle {
		maps.DeleteFunc(stored, func(c string, _ bool) bool { return has[c] })
		m.Held = slices.Sorted(maps.Keys(stored))
	}
	if !h.sparse {
		m.Has = slices.Sorted(maps.Keys(has))
	}
	return m, nil
}

// had returns which of some stored commits a commit has below it, or has had as others. Only what is
// below it counts if git cannot say the second, such as in a partial clone.
func (g *git) had(tip string, stored map[string]bool) (map[string]bool, error) {
	if len(stored) == 0 {
		return nil, nil
	}
	has, err := g.below(tip, stored)
	if err == nil {
		_ = g.retold(tip, stored, has)
		err = g.ctx.Err()
	}
	return has, err
}

const (
	// maxRetold is of how many of the newest commits it is asked whether HEAD has had their changes.
	maxRetold = 4
	// maxRetoldBy is in how many commits below HEAD they are searched: in those that change one of the first
	// maxRetoldFiles files.
	maxRetoldBy    = "--max-count=2000"
	maxRetoldFiles = 250
)

// retold adds to the commits that HEAD has below it those of which it has had all versions of files since
// they were made.
func (g *git) retold(head string, commits, below map[string]bool) error {
	if len(below) == len(commits) {
		return nil
	}
	out, err := g.run(strings.NewReader(keyLines(commits)+"^"+head+"\n"), "rev-list", "--stdin", "--topo-order")
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

// hasChanges reports whether head has, or has had since it was made, the version of each file that a commit
// and those below it have changed since what is below both. What it had before is no merge: the user may have
// had one of the versions, and taken it back. A removed file alone says nothing: the user may have removed it
// too.
func (g *git) hasChanges(head, commit string) (bool, error) {
	bounded := *g
	bounded.limited = true
	out, err := g.run(nil, "merge-base", "--all", head, commit)
	if err != nil {
		if status(err) == 1 {
			err = nil // nothing is below both
		}
		return false, err
	}
	base := strings.TrimSpace(string(out))
	if base == head || strings.Contains(base, "\n") {
		return false, nil // nothing is new, or it is unclear since when
	}
	all, err := bounded.changes(base, commit)
	if err != nil {
		return false, err
	}
	differs, err := bounded.changes(head, commit)
	if err != nil {
		return false, err
	}
	written := false
	for name, e := range all {
		written = written || e.object != ""
		if _, other := differs[name]; !other {
			delete(all, name) // head has this version
		}
	}
	if !written || len(all) == 0 {
		return written, nil
	}
	names := slices.Sorted(maps.Keys(all))
	had, _, err := bounded.versions(head, base, names[:min(len(names), maxRetoldFiles)])
	if err != nil {
		return false, err
	}
	for name, e := range all {
		if _, known := had[fileVersion{name, e}]; !known {
			return false, nil
		}
	}
	made, merged, err := bounded.versions(commit, base, nil)
	if err != nil {
		return false, err
	}
	for name, e := range all {
		v := fileVersion{name, e}
		if !slices.ContainsFunc(had[v], func(h commitDates) bool { return h.follows(made[v], merged) }) {
			return false, nil
		}
	}
	return true, nil
}

// commitDates are when a commit was written first, and when it was made, in seconds since 1970.
type commitDates struct{ author, committer int64 }

// follows reports whether a commit may have brought a version of the work: it was made after the newest
// commit of the work that made the version, and after all merges of the work. If it was written before, it
// must be a copy of that commit: a rebase of what the user had before the work makes new commits, too.
func (d commitDates) follows(made []commitDates, merged int64) bool {
	var newest commitDates
	for _, m := range made {
		if m.committer >= newest.committer {
			newest = m
		}
	}
	since := max(newest.committer, merged)
	return since > 0 && d.committer >= since && (d.author >= since || d.author == newest.author)
}

// fileVersion is what a commit has of a path.
type fileVersion struct {
	name string
	treeEntry
}

// versions returns to what the commits below a tip, but not below base, have changed files, and when, and the
// newest date of those that are merges. If there are names, only commits that change one count.
func (g *git) versions(tip, base string, names []string) (all map[fileVersion][]commitDates, merged int64, err error) {
	out, err := g.run(nil, slices.Concat([]string{"--literal-pathspecs", "rev-list", "--format=%at %ct %P", "--full-history", maxRetoldBy, tip, "^" + base, "--"}, names)...)
	if err != nil {
		return nil, 0, err
	}
	dates := make(map[string]commitDates)
	commit := ""
	for line := range strings.Lines(string(out)) {
		if name, is := strings.CutPrefix(line, "commit "); is {
			commit = strings.TrimSpace(name)
			continue
		}
		var d commitDates
		words := strings.Fields(line)
		if len(words) < 2 {
			return nil, 0, fmt.Errorf("git rev-list printed %q", line)
		}
		for i, field := range []*int64{&d.author, &d.committer} {
			seconds, err := strconv.ParseUint(words[i], 10, 64) // before 1970 it is printed so, too
			if err != nil {
				return nil, 0, err
			}
			*field = int64(seconds)
		}
		if dates[commit] = d; len(words) > 3 {
			merged = max(merged, d.author, d.committer)
		}
	}
	out, err = g.run(strings.NewReader(keyLines(dates)), "diff-tree", "--stdin", "-r", "-z", "--no-renames", "--no-abbrev", "--ignore-submodules=none")
	if err != nil {
		return nil, 0, err
	}
	all = make(map[fileVersion][]commitDates)
	var d commitDates
	words := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(words); i++ {
		if !strings.HasPrefix(words[i], ":") {
			d = dates[words[i]] // the changes of this commit follow
			continue
		}
		err := eachChange([]byte(words[i]+"\x00"+words[i+1]), func(name string, two twoEntries) error {
			v := fileVersion{name, two.tip}
			all[v] = append(all[v], d)
			return nil
		})
		if err != nil {
			return nil, 0, err
		}
		i++
	}
	return all, merged, nil
}

// keyLines returns keys as lines, for standard input.
func keyLines[V any](keys map[string]V) string {
	var text strings.Builder
	for key := range keys {
		text.WriteString(key + "\n")
	}
	return text.String()
}

// changes returns what a commit has of the files in which it differs from another one.
func (g *git) changes(from, to string) (map[string]treeEntry, error) {
	out, err := g.run(nil, "diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", "--ignore-submodules=none", from, to)
	if err != nil {
		return nil, err
	}
	all := make(map[string]treeEntry)
	return all, eachChange(out, func(name string, two twoEntries) error {
		all[name] = two.tip
		return nil
	})
}
