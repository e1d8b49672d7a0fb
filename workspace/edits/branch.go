package edits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// BranchOptions say how to commit work.
type BranchOptions struct {
	// Folder is in the work tree of a repository.
	Folder string
	// Branch is made at HEAD if it does not exist, or with the commits of History on top of the
	// one that was copied. Otherwise the commit is on top of it.
	Branch, Message string
	// Label is the name of the sandbox in markers.
	Label string
	// Check decides, and changes nothing.
	Check bool
	// Filters allows the filters of git that only the repository's own settings define.
	Filters bool
	// Note is called with the result before the branch moves, and if it need not move. Until then
	// no reference has the commit. If Note fails, the branch stays.
	Note func(Committed) error
	// Untracked are files of the base that the workspace still has, and that git does not track
	// there, with their versions in the base. Copied is the commit that was copied in. Their changes stay out of the branch
	// if it has them, and if Untrack is set, one commit of all removes them from the branch.
	Untracked map[string]*File
	// Fresh are new files that git does not track there, true if one of the name was copied in. They stay out
	// if git has tracked them.
	Fresh map[string]bool
	// Lost are those that a branch has lost before (Committed.Untracked).
	Lost    map[string]bool
	Copied  string
	Untrack bool
	// AtHome are changes that came home before, so that they are not among the others.
	AtHome []Change
	// History has the commits of the sandbox, which are brought as they are; nil makes one
	// commit. Read is History.Read then.
	History *History
	Read    func(name string, most int64) ([]byte, error)
}

// History is the repository in the workspace of a sandbox. Nothing of it is trusted.
type History struct {
	// Copied is the commit that was copied in, and Tip the one that HEAD names inside.
	Copied, Tip string
	// Objects writes an archive of the folder objects of its repository.
	Objects func(w io.Writer) error
	// Read returns the first bytes of a file of the workspace; nothing if there is none. It may be nil.
	Read func(name string, most int64) ([]byte, error)
	// Agree is told which files the commits bring or remove, and the submodules of which they bring a
	// commit that `git submodule update` may fetch. Its error ends the call.
	Agree func(changes, submodules []Change) error
	// Base are the files that the workspace has, unless they are among the changes. Brought are those of
	// which the branch has got that version, or what the sandbox has changed in it.
	Base    map[string]*File
	Brought map[string]bool
	// Copy are the files that were copied in; nil if that is not known. Apart are those whose
	// version in the workspace is neither in Base nor among the changes: new files that are
	// ignored, large ones, and what nobody agreed to. The version of the commits stays.
	Copy  map[string]*File
	Apart map[string]bool
	// Excluded reports whether the copy was to leave a path out. It may be nil.
	Excluded func(name string) bool
	// Home returns Base without what went to branches only; nil if that is not known.
	Home func() (map[string]*File, error)
}

// SandboxCommit is a commit that a sandbox made. The sandbox has written all of it.
type SandboxCommit struct{ ID, Subject string }

// Link is a symbolic link that a commit has.
type Link struct{ Path, Target string }

// Committed is the result of Commit.
type Committed struct {
	Outcomes []Outcome
	// Outside are changed files that git does not track, and Refused those whose names it refuses:
	// they are on no branch.
	Outside, Refused []string
	// Unfit are changed files that do not have the encoding that attributes say, so that git cannot
	// store them, and those that were renamed to such: they are on no branch.
	Unfit []string
	// Encodings are those of Unfit that git does not know.
	Encodings []string
	// Submodules are changed files inside submodules, of which a branch has only the commit.
	Submodules []string
	// Had are the files of which the branch had the sandbox's version before, and gets no commit that
	// changes them.
	Had map[string]bool
	// AtHome are the files that came to the folder before, which still has them so, and the branch
	// has not.
	AtHome []string
	// Untracked are files that the branch loses, because git does not track them in the sandbox.
	Untracked []string
	// Commit is the new commit. It is empty if there are conflicts, if the branch has all
	// changes already, or for a check. Has is then the one that has them, and Tip what the branch
	// was before; empty if it did not exist.
	Commit, Has, Tip string
	// Commits are those of the sandbox, the oldest first, and Links the symbolic links in them.
	Commits []SandboxCommit
	Links   []Link
	// Gitlinks are the submodules of which Commits have another commit.
	Gitlinks []string
	// HasTip is set if the branch has the sandbox's commits as they are, or will have them by Commit.
	HasTip bool
	// LFS are the files of which Commits have versions whose content git-lfs has inside only.
	LFS []string
	// Rewritten is set if there is a History, and the commit that was copied in is not in it, or
	// not in the repository any more.
	Rewritten bool
}

// Left are the changed files that are on no branch.
func (c Committed) Left() []string { return slices.Concat(c.Outside, c.Refused, c.Unfit, c.Submodules) }

// branch is the tree that work is merged into.
type branch struct {
	*target
	// ref is the branch, and tip its commit, empty if it does not exist. parent is the commit
	// to build on, empty in a repository without commits.
	ref, tip, parent string
	// second is a further parent, the commits of the sandbox beside those of the branch.
	second string
	// joins are the files in which the sandbox's commit differs from the one below both.
	joins map[string]twoEntries
	// had are the versions that these files had on the branch since then.
	had map[string]map[treeEntry]bool
	// made are the versions that the sandbox's commits have of the files that they change, and older
	// those of which the sandbox's commit has what was before, and the branch something that came since.
	made  map[string]map[treeEntry]bool
	older []string
	// tips are what the sandbox's commit has of them.
	tips map[string]treeEntry
	// home is what History.Home has returned, and unsure are decisions that a person must make.
	home   map[string]*File
	unsure []decision
	// stopped are the files that git has stopped tracking in the sandbox, and that it still has or has anew.
	// came are those of them that commits change, and that the branch has as they were brought.
	// lost are those that a branch has lost by that.
	stopped, came, lost map[string]bool
	// unfit are the files whose version of the workspace does not have the encoding of its attributes.
	// unknown are the encodings of these that git does not know.
	unfit, unknown map[string]bool
	// exact is set if parent is the sandbox's commit, and noModes if git takes no modes from files.
	exact, noModes bool
	// anew are the files that the sandbox's commits only store in another way, and unread those of
	// which that is not known, with what hinders it.
	anew   map[string]bool
	unread map[string]string
	// copied is the commit that was copied in if commits of the sandbox come, and first is git with
	// its attributes, once that was needed.
	copied string
	first  *git
	// objects reads objects of the own repository.
	objects *objects
	// pointers are the contents that the sandbox's commits name for git-lfs, with their paths.
	pointers map[string]string
	// known are commits that the target has.
	known []string
	// entries are the files of the tree by path, below the folder.
	entries map[string]treeEntry
	// folders are the folders of entries.
	folders map[string]bool
	// attributes are the files of the whole tree that have attributes, by path in it.
	attributes map[string]treeEntry
}

func openBranch(ctx context.Context, o BranchOptions, dir string) (*branch, error) {
	if err := ambiguous(o.Branch); err != nil {
		return nil, err
	}
	t, err := openTarget(ctx, o.Folder, dir, o.Filters)
	if err != nil {
		return nil, err
	}
	b := &branch{target: t, ref: "refs/heads/" + o.Branch, objects: &objects{git: t.own}, entries: make(map[string]treeEntry), folders: make(map[string]bool), attributes: make(map[string]treeEntry)}
	err = together(
		func() error {
			name, err := b.own.run(nil, "check-ref-format", "--branch", o.Branch)
			if err != nil || strings.TrimSpace(string(name)) != o.Branch {
				err = fmt.Errorf("%q cannot be the name of a branch", o.Branch)
			}
			return err
		},
		func() error { return b.find(o.Branch) },
		func() error { return b.notCheckedOut(o.Branch) },
	)
	if err != nil {
		return nil, err
	}
	named := b.tip
	err = together(
		func() error { return b.notRebased(o.Branch, named) },
		func() (err error) {
			b.tip, err = b.peel(named)
			return err
		},
		func() (err error) {
			on := named
			if on == "" {
				on, err = b.commitOf("HEAD")
			}
			return cmp.Or(err, b.at(on))
		},
	)
	b.parent = cmp.Or(b.tip, b.parent)
	b.known = []string{b.parent}
	return b, err
}

// special are the names of git's own references besides those that end with _HEAD.
var special = []string{"@", "HEAD", "stash", "AUTO_MERGE", "BISECT_EXPECTED_REV", "NOTES_MERGE_PARTIAL", "NOTES_MERGE_REF"}

// ambiguous refuses the name of a branch that git takes for another reference first.
func ambiguous(name string) error {
	short, branch := strings.CutPrefix(name, "refs/heads/")
	switch {
	case branch && short != "":
		return fmt.Errorf("%q cannot be the name of a branch: write %q", name, short)
	case slices.ContainsFunc([]string{"refs/", "heads/", "tags/", "remotes/"}, func(p string) bool { return strings.HasPrefix(name, p) }), slices.Contains(special, name), name == strings.ToUpper(name) && strings.HasSuffix(name, "_HEAD"):
		return fmt.Errorf("%q cannot be the name of a branch, because git takes it for another reference: name another one, such as \"work\"", name)
	}
	return nil
}

// at makes a commit the one to build on.
func (b *branch) at(commit string) error {
	b.parent = commit
	clear(b.entries)
	clear(b.folders)
	clear(b.attributes)
	if commit == "" {
		return nil
	}
	out, err := b.own.run(nil, "ls-tree", "-r", "-z", "--full-tree", commit)
	if err == nil {
		b.remember(out)
	}
	return err
}

// remember remembers the entries that git ls-tree prints.
func (b *branch) remember(out []byte) {
	for name, e := range treeEntries(out) {
		if path.Base(name) == ".gitattributes" {
			b.attributes[name] = e
		}
		if name, below := strings.CutPrefix(name, b.prefix); below {
			b.entries[name] = e
			for dir := path.Dir(name); dir != "." && !b.folders[dir]; dir = path.Dir(dir) {
				b.folders[dir] = true
			}
		}
	}
}

// find finds the branch. It refuses one that stands for another one, which may be checked out, and
// the name of a new one below or above the names of others, which git cannot have, and that of a tag,
// which git would merge instead.
func (b *branch) find(name string) error {
	tag := "refs/tags/" + name
	patterns := []string{b.ref, tag}
	for _, dir := range above(name) {
		patterns = append(patterns, "refs/heads/"+dir)
	}
	out, err := b.refs.run(nil, append([]string{"for-each-ref", "--format=%(refname) %(objectname) %(symref)"}, patterns...)...)
	if err != nil {
		return err
	}
	to, inTheWay, tagged := "", "", false
	for line := range strings.Lines(string(out)) {
		words := append(strings.Fields(line), "")
		switch {
		case words[0] == b.ref:
			b.tip, to = words[1], words[2]
		case words[0] == tag:
			tagged = true
		case slices.Contains(patterns, words[0]), strings.HasPrefix(words[0], b.ref+"/"):
			inTheWay = cmp.Or(inTheWay, words[0])
		}
	}
	if b.tip == "" { // it may stand for one that does not exist
		out, err := b.refs.run(nil, "symbolic-ref", "-q", b.ref)
		if err != nil && status(err) != 1 {
			return err
		}
		to = strings.TrimSpace(string(out))
	}
	switch {
	case to != "":
		return fmt.Errorf("the branch %s is a symbolic reference to %s: name that one", name, to)
	case b.tip == "" && inTheWay != "":
		return fmt.Errorf("git has the branch %s, so it cannot have a branch %s: name another one", strings.TrimPrefix(inTheWay, "refs/heads/"), name)
	case b.tip == "" && tagged:
		return fmt.Errorf("there is a tag %s, which git would take for the branch: name another one", name)
	}
	return nil
}

// notCheckedOut refuses a branch that a work tree has checked out: its files would not
// follow.
func (b *branch) notCheckedOut(name string) error {
	out, err := b.refs.run(nil, "worktree", "list", "--porcelain")
	if err != nil {
		return err
	}
	for line := range strings.SplitSeq(string(out), "\n") {
		if line == "branch "+b.ref {
			return fmt.Errorf("the branch %s is checked out: name another one, or bring the work to the folder without --branch", name)
		}
	}
	return nil
}

// notRebased refuses a branch that a rebase or bisection of a work tree will set: git names these only
// when it is asked to move the branch, here to what is no commit. tip is empty if it does not exist.
func (b *branch) notRebased(name, tip string) error {
	if tip == "" {
		return nil
	}
	_, err := b.refs.run(nil, "branch", "-q", "-f", name, b.noObject())
	if failed := new(gitError); errors.As(err, &failed) && strings.Contains(failed.said, "cannot force update the") {
		return fmt.Errorf("a rebase or bisection of a work tree will move the branch %s: name another one, or end that first", name)
	}
	return b.refs.ctx.Err()
}

func (b *branch) state(name string) (*File, error) {
	e, err := b.entry(name)
	if e.object == "" || err != nil {
		return nil, err
	}
	return b.objects.file(e)
}

// entry returns the file of a path in the tree; without an object if there is none.
func (b *branch) entry(name string) (treeEntry, error) {
	e, ok := b.entries[name]
	switch {
	case ok && (e.mode == "100644" || e.mode == "100755" || e.mode == "120000"):
		return e, nil
	case ok:
		return treeEntry{}, &errBlocked{"there is a submodule"}
	case b.folders[name]:
		return treeEntry{}, &errBlocked{"there is a folder"}
	}
	for _, dir := range above(name) {
		if _, ok := b.entries[dir]; ok {
			return treeEntry{}, &errBlocked{"a file, link or submodule is in the place of one of its folders"}
		}
	}
	return treeEntry{}, nil
}

func (b *branch) read(name string) ([]byte, error) {
	return b.objects.content(b.entries[name].object, maxRead)
}

func (b *branch) freed(name string, removed map[string]bool) (bool, error) {
	for _, dir := range above(name) {
		if removed[dir] {
			return true, nil
		}
	}
	if !b.folders[name] {
		return false, nil
	}
	for one := range b.entries {
		if strings.HasPrefix(one, name+"/") && !removed[one] {
			return false, nil
		}
	}
	return true, nil
}

// commit writes the new tree by an index of its own.
func (b *branch) commit(decisions []decision, o BranchOptions) (string, error) {
	var list strings.Builder
	var names []string
	var written []decision
	for i, d := range decisions {
		switch d.Kind {
		case Removed:
			fmt.Fprintf(&list, "0 %s\t%s\x00", b.noObject(), path.Join(b.prefix, d.Path))
		case Written, Merged:
			if d.object != "" {
				fmt.Fprintf(&list, "%s %s 0\t%s\x00", d.new.Mode(), d.object, path.Join(b.prefix, d.Path))
				continue
			}
			name := d.AfterFile()
			if d.content != nil {
				name = filepath.Join(b.own.dir, fmt.Sprintf("merged-%d", i))
				if err := os.WriteFile(name, d.content, 0o600); err != nil {
					return "", err
				}
			}
			names, written = append(names, name), append(written, d)
		}
	}
	objects, err := b.own.blobs(names)
	if err != nil {
		return "", err
	}
	for i, d := range written {
		fmt.Fprintf(&list, "%s %s 0\t%s\x00", d.new.Mode(), objects[i], path.Join(b.prefix, d.Path))
	}
	with := *b.own
	with.env = append(slices.Clone(with.env), "GIT_INDEX_FILE="+filepath.Join(b.own.dir, "index"))
	if b.parent != "" {
		if _, err := with.run(nil, "read-tree", b.parent); err != nil {
			return "", err
		}
	}
	if _, err := with.run(strings.NewReader(list.String()), "update-index", "-z", "--index-info"); err != nil {
		return "", err
	}
	tree, err := with.run(nil, "write-tree", "--missing-ok") // a partial clone has not all files
	if err != nil {
		return "", err
	}
	args := []string{"commit-tree", strings.TrimSpace(string(tree)), "-F", "-"}
	if b.parent != "" {
		args = append(args, "-p", b.parent)
	}
	if b.second != "" {
		args = append(args, "-p", b.second)
	}
	out, err := b.own.run(strings.NewReader(o.Message+"\n"), args...)
	if err != nil {
		return "", b.unknownUser(err)
	}
	return strings.TrimSpace(string(out)), nil
}

// errUnknownUser is the error if git has no author for a commit.
var errUnknownUser = errors.New("git does not know who the author of the commit is: `git config --global user.name NAME` and `git config --global user.email ADDRESS` set it, then run this command again")

// unknownUser returns errUnknownUser instead of the failure of a commit if git has no author or committer.
func (b *branch) unknownUser(failed error) error {
	for _, who := range []string{"GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"} {
		if _, err := b.own.run(nil, "var", who); errors.As(err, new(*gitError)) && status(err) > 0 {
			return errUnknownUser
		}
	}
	return failed
}
