package edits

import (
	big "encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// History is the repository in the workspace of a sandbox. Nothing of it is trusted.
type History struct {
	// Copied is the commit that was copied in, and Tip the one that HEAD names inside.
	Copied, Tip string
	// Objects writes an archive of the folder objects of its repository.
	Objects func(w io.Writer) error
	// Read returns the first bytes of a file of the workspace; nothing if there is none. It may be nil.
	Read func(name string, most int64) ([]byte, error)
	// Agree is told which files the commits bring or remove. Its error ends the call.
	Agree func(changes []Change) error
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

// HistoryError is the error for commits that cannot be brought as they are.
type HistoryError struct{ Err error }

// Error says why.
func (e *HistoryError) Error() string {
	return fmt.Sprintf("the commits of the sandbox cannot be brought as they are (%v): --squash makes one commit of its files", e.Err)
}

// Unwrap returns the cause.
func (e *HistoryError) Unwrap() error { return e.Err }

const (
	// maxCommits is the maximum number of commits of a sandbox, and maxNew that of their objects.
	maxCommits = 10_000
	maxNew     = 500_000
	// maxSubject is the maximum length of a subject, and maxLink that of the target of a link,
	// in bytes. What is longer is cut.
	maxSubject = 200
	maxLink    = 4 << 10
	// listMemory is the memory of a git that lists what commits have, in bytes.
	listMemory = 1 << 30
)

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
	changes, links, blobs, err := b.touched(h)
	if err == nil {
		b.pointers, err = b.pointersOf(h, blobs)
	}
	if err == nil {
		err = h.Agree(changes)
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

// isAbove reports whether a commit has another one below it, or is it.
func (b *branch) isAbove(commit, other string) (bool, error) {
	_, err := b.list("merge-base", "--is-ancestor", other, commit)
	if status(err) == 1 {
		return false, nil
	}
	return err == nil, err
}

// list runs git on commits of a sandbox, within bounds. The objects are as they should be, but
// few of them may stand for any number of paths. Its errors are HistoryErrors.
func (b *branch) list(args ...string) ([]byte, error) {
	g := *b.own
	g.bounded, g.limited, g.memory = true, true, listMemory
	out, err := g.run(nil, args...)
	if failed := new(gitError); errors.As(err, &failed) && strings.Contains(strings.ToLower(failed.said), "out of memory") {
		err = errTooManyPaths
	}
	if err != nil && b.own.ctx.Err() == nil {
		err = &HistoryError{err}
	}
	return out, err
}

// receive checks the commits of a sandbox and stores them in the own repository. It returns those
// that the branch does not have. rewritten means that the commit that was copied in is not below
// them. What a sandbox wrote is read by git with
// bounds in a repository without settings, and only what git then checks again, object by
// object, comes out of it.
func (b *branch) receive(h *History) (all []SandboxCommit, rewritten bool, err error) {
	has, err := b.commitOf(h.Copied)
	if has == "" || err != nil {
		return nil, true, nil //nolint:nilerr // the user's repository has another history now
	}
	if rewritten, err := b.fetch(h); rewritten || err != nil {
		return nil, rewritten, err
	}
	for _, check := range [][]string{
		{"rev-parse", "--verify", "-q", h.Tip + "^{commit}"}, {"merge-base", "--is-ancestor", h.Copied, h.Tip},
		{"rev-list", "--objects", "--quiet", h.Tip, "^" + h.Copied},
	} {
		if _, err := b.list(check...); err != nil {
			return nil, false, err
		}
	}
	args := []string{"log", "--topo-order", "--encoding=UTF-8", "--max-count=" + strconv.Itoa(maxCommits+1), fmt.Sprintf("--format=%%H %%<(%d,trunc)%%s", maxSubject), "-z"}
	out, err := b.list(append(args, b.fresh(h)...)...)
	if len(out) == 0 {
		return nil, false, err
	}
	for line := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
		id, subject, _ := strings.Cut(line, " ")
		subject = strings.TrimRight(subject[:min(len(subject), maxSubject)], " ") // git cuts only text
		all = append(all, SandboxCommit{strings.Clone(id), strings.ToValidUTF8(subject, "")})
	}
	if len(all) > maxCommits {
		err = &HistoryError{fmt.Errorf("there are more than %d", maxCommits)}
	}
	slices.Reverse(all)
	return all, false, err
}

// fresh names the commits of a sandbox that the branch does not have.
func (b *branch) fresh(h *History) []string {
	revs := []string{h.Tip, "^" + h.Copied}
	if b.tip != "" {
		revs = append(revs, "^"+b.tip)
	}
	return revs
}

// fetch brings the objects. rewritten means that the tip is not on top of the copied commit.
func (b *branch) fetch(h *History) (rewritten bool, err error) {
	dir := filepath.Join(b.own.dir, "sandbox")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return false, err
	}
	theirs, err := scratchRepository(b.own.ctx, dir, "--object-format="+b.format)
	if err != nil {
		return false, err
	}
	theirs.bounded = true
	objects := filepath.Join(theirs.gitDir, "objects")
	r, w := io.Pipe()
	read := make(chan error, 1)
	go func() { // waited for below
		err := h.Objects(w)
		_ = w.CloseWithError(err)
		read <- err
	}()
	packs, err := unpackObjects(r, objects, filepath.Join(b.common, "objects"))
	_ = r.CloseWithError(io.ErrClosedPipe)
	if failed := <-read; err == nil && failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		return false, failed
	}
	if err != nil {
		return false, &HistoryError{err}
	}
	if err := b.lend(theirs); err != nil {
		return false, err
	}
	if shallow := filepath.Join(b.common, "shallow"); exists(shallow) {
		if err := os.Symlink(shallow, filepath.Join(theirs.gitDir, "shallow")); err != nil {
			return false, err
		}
	}
	for _, pack := range packs {
		if _, err := theirs.run(nil, "index-pack", pack); err != nil {
			return false, &HistoryError{err}
		}
	}
	if _, err := theirs.run(nil, "merge-base", "--is-ancestor", h.Copied, h.Tip); status(err) == 1 {
		return true, nil
	} else if err != nil {
		return false, &HistoryError{err}
	}
	return false, b.check(theirs, h)
}

// check packs the new commits and has git check them into the own repository.
func (b *branch) check(theirs *git, h *History) error {
	file, err := os.OpenFile(filepath.Join(b.own.dir, "sandbox.pack"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // read again below
	if err := theirs.pipe(strings.NewReader(h.Tip+"\n^"+h.Copied+"\n"), file, "pack-objects", "-q", "--revs", "--stdout"); err != nil {
		return &HistoryError{err}
	}
	head := make([]byte, 12)
	if _, err := file.ReadAt(head, 0); err != nil || big.BigEndian.Uint32(head[8:]) > maxNew {
		return &HistoryError{errors.Join(err, fmt.Errorf("they have more than %d objects", maxNew))}
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	own := *b.own
	own.bounded, own.env = true, nil
	if _, err := own.run(file, "index-pack", "--stdin", "--strict", "--fsck-objects"); err != nil {
		return &HistoryError{err}
	}
	return nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// touched returns the files that commits bring or remove, compared with each parent, the links
// among them, and a path of each object of the others.
func (b *branch) touched(h *History) (changes []Change, links []Link, blobs map[string]string, err error) {
	args := []string{"log", "-m", "--root", "--format=", "--raw", "-r", "-z", "--no-renames", "--no-abbrev"}
	out, err := b.list(append(args, b.fresh(h)...)...)
	if err != nil {
		return nil, nil, nil, err
	}
	blobs, b.made = make(map[string]string), make(map[string]map[treeEntry]bool)
	err = eachChange(out, func(name string, two twoEntries) error {
		mode, object := two.tip.mode, two.tip.object
		if b.made[name][two.tip] {
			return nil
		}
		if b.made[name] == nil {
			b.made[name] = make(map[treeEntry]bool)
		}
		b.made[name][two.tip] = true
		c := Change{Path: name, Before: &File{}}
		switch mode {
		case "":
		case "160000":
			c.Path, c.After = name+"/.git", &File{} // a repository of its own
		default:
			c.After = &File{Executable: mode == "100755", Link: mode == "120000"}
			if two.was.object == "" {
				c.Before = nil
			}
			if !c.After.Link {
				blobs[object] = name
			}
		}
		if mode == "120000" {
			to, err := b.objects.content(object, maxLink)
			if err != nil {
				return err
			}
			links = append(links, Link{name, string(to)})
		}
		changes = append(changes, c)
		return nil
	})
	return changes, links, blobs, err
}

// twoEntries are what an earlier commit and the tip have of a path; without an object if there is
// none.
type twoEntries struct{ was, tip treeEntry }

// eachChange calls do with the files that git prints with --raw -z. A merge was what its first parent has.
func eachChange(out []byte, do func(name string, two twoEntries) error) error {
	words := strings.Split(string(out), "\x00")
	for i := 0; i+1 < len(words); i += 2 {
		line := strings.TrimLeft(words[i], "\n")
		text := strings.TrimLeft(line, ":")
		meta, parents := strings.Fields(text), len(line)-len(text)
		if parents == 0 || len(meta) != 2*parents+3 {
			return &HistoryError{fmt.Errorf("git named a change as %q", words[i])}
		}
		var two twoEntries
		if meta[0] != "000000" {
			two.was = treeEntry{meta[0], meta[parents+1]}
		}
		if meta[parents] != "000000" {
			two.tip = treeEntry{meta[parents], meta[2*parents+1]}
		}
		if err := do(words[i+1], two); err != nil {
			return err
		}
	}
	return nil
}

// differing returns the paths in which the tip differs from an earlier commit.
func (b *branch) differing(from, tip string) (map[string]twoEntries, error) {
	out, err := b.list("diff-tree", "-r", "-z", "--no-renames", "--no-abbrev", from, tip)
	if err != nil {
		return nil, err
	}
	all := make(map[string]twoEntries)
	return all, eachChange(out, func(name string, two twoEntries) error {
		all[name] = two
		return nil
	})
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
