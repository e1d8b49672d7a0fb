package edits

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// workTree makes git in an empty work tree, with the attributes of a commit.
func (b *branch) workTree(name, commit string) (*git, error) {
	with := *b.own
	with.dir = filepath.Join(b.own.dir, name)
	with.env = append(slices.Clone(with.env), "GIT_WORK_TREE="+with.dir, "GIT_INDEX_FILE="+with.dir+".index", "GIT_LFS_SKIP_SMUDGE=1") // nothing is fetched
	if err := os.Mkdir(with.dir, 0o700); err != nil {
		return nil, err
	}
	_, err := with.run(nil, "read-tree", commit)
	return &with, err
}

// checkout is an entry of a tree, and a file that git may write of it into a work tree.
type checkout struct {
	name  string
	entry treeEntry
	file  *File
}

// attributes reports whether it says how git writes other files.
func (c checkout) attributes() bool { return path.Base(c.name) == ".gitattributes" }

// maxCheckouts is how many files are written at once: they need room on the disk.
const maxCheckouts = 1000

// checksOut returns the names of the files that are what git writes of their entries, which are of
// one tree. The attributes are those of the branch. A filter that the commit that was copied does not
// name is not run to see that: only attributes of the sandbox may name it. Files of such filters are
// untried.
func (b *branch) checksOut(all []checkout) (same, untried map[string]bool, err error) {
	same, untried = make(map[string]bool), make(map[string]bool)
	all = slices.DeleteFunc(slices.Clone(all), func(c checkout) bool { return c.entry.mode != c.file.Mode() || c.file.Link })
	if len(all) == 0 {
		return same, nil, nil
	}
	work, err := b.workTree("work", b.parent)
	if err != nil {
		return nil, nil, err
	}
	if b.copied != "" {
		if b.first == nil {
			if b.first, err = b.workTree("first", b.copied); err != nil {
				return nil, nil, err
			}
		}
		filters, err := work.filters(b.paths(all))
		if err != nil {
			return nil, nil, err
		}
		first, err := b.first.filters(b.paths(all))
		if err != nil {
			return nil, nil, err
		}
		all = slices.DeleteFunc(all, func(c checkout) bool {
			name := b.prefix + c.name
			untried[c.name] = filters[name] != first[name]
			return untried[c.name]
		})
	}
	if err := b.agreed(work, b.paths(all)); err != nil {
		return nil, nil, err
	}
	// Entries with attributes come last, because the index has them then.
	slices.SortFunc(all, func(c, d checkout) int { return strings.Compare(c.name, d.name) })
	others := slices.DeleteFunc(slices.Clone(all), checkout.attributes)
	all = slices.DeleteFunc(all, func(c checkout) bool { return !c.attributes() })
	for _, kind := range [][]checkout{others, all} {
		for some := range slices.Chunk(kind, maxCheckouts) {
			if err := b.write(work, some, same); err != nil {
				return nil, nil, err
			}
		}
	}
	return same, untried, os.RemoveAll(work.dir)
}

// paths lists files for git.
func (b *branch) paths(all []checkout) string {
	var list strings.Builder
	for _, c := range all {
		list.WriteString(b.prefix + c.name + "\x00")
	}
	return list.String()
}

// write has git write entries, and notes which become their files.
func (b *branch) write(work *git, some []checkout, same map[string]bool) error {
	var entries strings.Builder
	for _, c := range some {
		fmt.Fprintf(&entries, "%s %s 0\t%s\x00", c.entry.mode, c.entry.object, b.prefix+c.name)
	}
	if _, err := work.run(strings.NewReader(entries.String()), "update-index", "--add", "--replace", "-z", "--index-info"); err != nil {
		return err
	}
	dir := filepath.Join(work.dir, "out")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for left := some; len(left) > 0; {
		_, err := work.asUser().run(strings.NewReader(b.paths(left)), "checkout-index", "--prefix=out/", "-z", "--stdin")
		if err == nil || status(err) == 1 { // 1: git has gone on
			break
		}
		if status(err) == 0 {
			return err
		}
		n := slices.IndexFunc(left, func(c checkout) bool { return !exists(filepath.Join(dir, b.prefix+c.name)) })
		if n < 0 {
			break
		}
		left = left[n+1:] // a filter cannot read this one, and git has ended there
	}
	out, err := openFolder(dir)
	if err != nil {
		return err
	}
	defer out.close()
	for _, c := range some {
		written, failed := out.state(b.prefix + c.name)
		if Same(written, c.file) {
			same[c.name] = true
		}
		err = errors.Join(err, failed)
	}
	return errors.Join(err, os.RemoveAll(dir))
}

// maxPlaced is the maximum size in bytes of a file that is read from the workspace to store it.
const maxPlaced = 64 << 20

// storedAnew finds the files that a commit of the sandbox only stores in another way, as `git add
// --renormalize` does: the workspace has the version from before, or what was copied in and not
// committed, and git stores that as the tip has it, under its attributes. all are the files that
// commits have changed, and known those that the workspace has changed since.
func (b *branch) storedAnew(h *History, known map[string]bool, all ...map[string]twoEntries) error {
	b.anew, b.unread = make(map[string]bool), make(map[string]string)
	dir := filepath.Join(b.own.dir, "anew")
	tips, copies := make(map[string]string), make(map[string]string)
	for _, differing := range all {
		for name, two := range differing {
			now := h.Base[name]
			if now == nil || now.Link || known[name] || tips[name] != "" || two.was.object == "" || two.was.mode == "160000" || !strings.HasPrefix(two.tip.mode, "100") || path.Base(name) == ".gitattributes" {
				continue
			}
			was, err := b.objects.file(two.was)
			switch {
			case err != nil:
			case was.Sum != now.Sum && Same(now, h.Copy[name]):
				var placed bool
				if placed, err = b.copiedAnew(h, dir, name, two.tip); placed {
					tips[name], copies[name] = two.tip.object, two.tip.object
				}
			case was.Sum == now.Sum && two.was.object != two.tip.object:
				delete(b.unread, name)
				tips[name], err = two.tip.object, b.objects.write(two.was.object, filepath.Join(dir, name))
			}
			if err != nil {
				return err
			}
		}
	}
	same, err := b.storedAs(dir, h.Tip, tips)
	if err != nil {
		return err
	}
	maps.Copy(b.anew, same)
	maps.DeleteFunc(copies, func(name, _ string) bool { return same[name] })
	// The git of the sandbox may convert ends of lines by settings of its own. A filter that fails here
	// must not pass for one that stores a file as it is.
	settings := "'core.autocrlf=input'"
	for name := range b.cleans {
		settings += " 'filter." + strings.ReplaceAll(name, "'", `'\''`) + ".required'='true'"
	}
	same, err = b.storedAs(dir, h.Tip, copies, "GIT_CONFIG_PARAMETERS="+settings)
	for name := range copies {
		if _, known := same[name]; !known {
			b.unread[name] = "git cannot store here as its attributes say: a filter fails or is not known, or it does not have its encoding"
		}
	}
	maps.Copy(b.anew, same)
	return err
}

// copiedAnew writes a file that was not committed when it was copied in into a folder, unless the
// tip has the same.
func (b *branch) copiedAnew(h *History, dir, name string, e treeEntry) (placed bool, err error) {
	tip, err := b.objects.file(e)
	if err != nil || tip.Sum == h.Base[name].Sum {
		return false, err
	}
	if placed, err = b.place(h, dir, name, h.Base[name]); !placed {
		b.unread[name] = "cannot be read: it is too large, or the sandbox is not running; if so, start it; or it is being written; if so, call this again"
	}
	return placed, err
}

// place writes a version of a file of the workspace into a folder: the user's folder may still have
// it. It reports false if nobody has it any more, or if only the workspace has it and it is too large.
func (b *branch) place(h *History, dir, name string, f *File) (bool, error) {
	if f.TooLarge {
		return false, nil
	}
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return false, err
	}
	placed, err := copyOf(filepath.Join(b.top, b.prefix), name, f, file)
	if placed || err != nil || h == nil || h.Read == nil || f.Size > maxPlaced {
		return placed, err
	}
	content, err := h.Read(name, maxPlaced)
	if err != nil || !f.Is(content) {
		return false, err
	}
	return true, os.WriteFile(file, content, 0o600)
}

// copyOf copies a file in a folder to a new file if it is a version.
func copyOf(dir, name string, f *File, to string) (is bool, err error) {
	in, err := openFolder(dir)
	if err != nil {
		return false, err
	}
	defer in.close()
	if there, err := in.state(name); err != nil || there == nil || there.Link || there.Sum != f.Sum {
		return false, nil //nolint:nilerr // the folder has something else there
	}
	sum := sha256.New()
	err = in.within(name, false, func(at int, base string) error {
		from, err := openRegular(at, base)
		if err != nil {
			return err
		}
		defer from.Close() // only read
		file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(io.MultiWriter(file, sum), from)
		return errors.Join(err, file.Close())
	})
	if is = [sha256.Size]byte(sum.Sum(nil)) == f.Sum; !is && err == nil { // it changes
		err = os.Remove(to)
	}
	return is, err
}
