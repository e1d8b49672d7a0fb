package edits

import (
	"errors"
	"fmt"
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
