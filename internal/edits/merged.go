package edits

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
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
	// before is HEAD before a rebase or a series of picks, to which git goes back if that is aborted.
	before string
	// merging are commits that are being merged, also as one commit, and picking those that are being picked.
	merging, picking []string
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
	h.merging, h.picking = slices.Concat(g.commitsIn("MERGE_HEAD"), g.commitsIn("SQUASH_MSG")), g.commitsIn("CHERRY_PICK_HEAD")
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
	m.State = fmt.Sprint(h)
	return m, h, g, err
}

// commitsIn returns the commits that a file of the repository names, none if there is no such file.
func (g *git) commitsIn(name string) []string {
	text, err := confined.Read(g.gitDir, name, 64<<10)
	if err != nil {
		return nil
	}
	var commits []string
	for line := range strings.Lines(string(text)) {
		word := strings.TrimPrefix(strings.TrimSpace(line), "commit ") // in messages
		if (len(word) == 40 || len(word) == 64) && strings.Trim(word, "0123456789abcdef") == "" {
			commits = append(commits, word)
		}
	}
	return commits
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
	coming := make(map[string]bool)
	for _, tip := range h.merging {
		below, err := g.below(tip, stored)
		if err != nil {
			return m, err
		}
		maps.Copy(coming, below)
	}
	for _, one := range h.picking {
		coming[one] = stored[one]
	}
	for c, is := range coming {
		held[c] = held[c] || is && !has[c]
	}
	maps.DeleteFunc(held, func(_ string, is bool) bool { return !is })
	m.Held = slices.Sorted(maps.Keys(held))
	if !h.sparse {
		maps.DeleteFunc(has, func(c string, _ bool) bool { return held[c] })
		m.Has = slices.Sorted(maps.Keys(has))
	}
	return m, nil
}

// had returns which of some stored commits a commit has below it, or has had as others. Only what is
// below it counts if git cannot say the second, such as in a partial clone.
func (g *git) had(tip string, stored map[string]bool) (map[string]bool, error) {
	has, err := g.below(tip, stored)
	if err == nil {
		_ = g.retold(tip, stored, has)
		err = g.ctx.Err()
	}
	return has, err
}

const (
	// maxRetold is of how many of the newest commits it is asked whether HEAD has had their changes, and
	// maxRetoldBy in how many of its newest commits.
	maxRetold   = 4
	maxRetoldBy = 1000
)

// retold adds to the commits that HEAD has below it those of which it has had all versions of files since
// they were made.
func (g *git) retold(head string, commits, below map[string]bool) error {
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(commits)), func(c string) bool { return below[c] })
	if len(others) == 0 {
		return nil
	}
	bounded := *g
	bounded.limited = true
	versions, err := bounded.versions(head, others)
	if len(versions) == 0 || err != nil {
		return err
	}
	out, err := bounded.run(strings.NewReader(strings.Join(others, "\n")+"\n^"+head+"\n"), "rev-list", "--stdin", "--topo-order")
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
		has, err := bounded.hasChanges(head, c, versions)
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

// fileVersion is what a commit has of a path.
type fileVersion struct {
	name string
	treeEntry
}

// versions returns to what the newest commits below head have changed files, and when last, in seconds
// since 1970. What others have below them is left out.
func (g *git) versions(head string, others []string) (map[fileVersion]int64, error) {
	dates, err := g.dates(head, others, "--max-count="+strconv.Itoa(maxRetoldBy))
	if len(dates) == 0 || err != nil {
		return nil, err
	}
	list := strings.Join(slices.Collect(maps.Keys(dates)), "\n") + "\n"
	out, err := g.run(strings.NewReader(list), "diff-tree", "--stdin", "-r", "-z", "--no-renames", "--no-abbrev")
	if err != nil {
		return nil, err
	}
	all := make(map[fileVersion]int64)
	date, words := int64(0), strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(words); i++ {
		if !strings.HasPrefix(words[i], ":") {
			date = dates[words[i]] // the changes of this commit follow
			continue
		}
		err := eachChange([]byte(words[i]+"\x00"+words[i+1]), func(name string, two twoEntries) error {
			v := fileVersion{name, two.tip}
			all[v] = max(all[v], date)
			return nil
		})
		if err != nil {
			return nil, err
		}
		i++
	}
	return all, nil
}

// dates returns when the commits below a tip were made, in seconds since 1970, without those below others.
func (g *git) dates(tip string, others []string, args ...string) (map[string]int64, error) {
	list := tip + "\n^" + strings.Join(others, "\n^") + "\n"
	out, err := g.run(strings.NewReader(list), append([]string{"rev-list", "--stdin", "--timestamp"}, args...)...)
	if err != nil {
		return nil, err
	}
	all := make(map[string]int64)
	for line := range strings.Lines(string(out)) {
		date, commit, _ := strings.Cut(strings.TrimSpace(line), " ")
		if all[commit], err = strconv.ParseInt(date, 10, 64); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// hasChanges reports whether head has, or has had since they were made, all versions of files that a commit
// and those below it have changed since what is below both. What it had before is no merge of them: the
// user may have had one of the versions, and taken it back. A removed file alone says nothing: the user may
// have removed it too.
func (g *git) hasChanges(head, commit string, versions map[fileVersion]int64) (bool, error) {
	out, err := g.run(nil, "merge-base", head, commit)
	if err != nil {
		if status(err) == 1 {
			err = nil // nothing is below both
		}
		return false, err
	}
	base := strings.TrimSpace(string(out))
	made, err := g.dates(commit, []string{base})
	if err != nil {
		return false, err
	}
	since := slices.Min(slices.Collect(maps.Values(made)))
	all, err := g.changes(base, commit)
	if err != nil {
		return false, err
	}
	differs, err := g.changes(head, commit)
	if err != nil {
		return false, err
	}
	written := false
	for name, e := range all {
		written = written || e.object != ""
		had, known := versions[fileVersion{name, e}]
		if _, other := differs[name]; other && (!known || had < since) {
			return false, nil
		}
	}
	return written, nil
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
