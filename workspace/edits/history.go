package edits

import (
	big "encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

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

// touched returns the files that commits bring or remove, compared with each parent, the links
// among them, the submodules, and a path of each object of the other files.
func (b *branch) touched(h *History) (changes []Change, links []Link, submodules []Change, blobs map[string]string, err error) {
	args := []string{"log", "-m", "--root", "--format=", "--raw", "-r", "-z", "--no-renames", "--no-abbrev"}
	out, err := b.list(append(args, b.fresh(h)...)...)
	if err != nil {
		return nil, nil, nil, nil, err
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
		if mode != "" {
			c.After = &File{Executable: mode == "100755", Link: mode == "120000"}
			if two.was.object == "" {
				c.Before = nil
			}
			if mode == "160000" {
				submodules = append(submodules, c)
				return nil
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
	return changes, links, submodules, blobs, err
}

// fetchable returns the submodules that `git submodule update` may fetch: all, if there is a
// .gitmodules or the changes have one. Without it git does nothing with them.
func (b *branch) fetchable(h *History, changes, submodules []Change) ([]Change, error) {
	if len(submodules) == 0 || exists(filepath.Join(b.top, ".gitmodules")) || slices.ContainsFunc(changes, func(c Change) bool { return c.Path == ".gitmodules" }) {
		return submodules, nil
	}
	for _, commit := range []string{h.Copied, b.tip} {
		if commit == "" {
			continue
		}
		if out, err := b.list("ls-tree", commit, ".gitmodules"); len(out) > 0 || err != nil {
			return submodules, err
		}
	}
	return nil, nil
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
