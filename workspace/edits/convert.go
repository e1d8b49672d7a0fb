package edits

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/gitignore"
)

// FilterError is the error for files that need filters of git which only the settings of the
// repository itself define: whoever could write them chose the programs.
type FilterError struct{ Filters []string }

// Error says what to do.
func (e *FilterError) Error() string {
	return fmt.Sprintf("its files need filters of git that only its own settings define (%s), and programs run for them: agree with --yes-executable, or define them in your settings (`git config --global`)", strings.Join(e.Filters, ", "))
}

// outside splits changes: of those outside, git has no file to change, because it is ignored or
// was never added. They were copied in, and stay out of a branch unless the sandbox has added them.
func (b *branch) outside(changes []Change) (inside []Change, outside []string, err error) {
	var all, unknown []Change
	for _, c := range changes {
		if c.From != "" && (b.lost[c.From] && b.entries[c.From].object == "" || b.stopped[c.Path]) { // no renamed file for git
			gone, added := c.halves()
			all = append(all, gone, added)
		} else {
			all = append(all, c)
		}
	}
	Sort(all)
	for _, c := range all {
		name := c.Path
		if c.From != "" {
			name = c.From
		}
		if b.stopped[name] && c.After != nil {
			outside = append(outside, name)
		} else if there, err := b.entry(name); c.Before == nil || c.Retracked || !usable(name) || there.object != "" || b.joins[name] != (twoEntries{}) || c.After == nil && b.made[name] != nil || err != nil {
			inside = append(inside, c)
		} else {
			unknown = append(unknown, c)
		}
	}
	if len(unknown) == 0 {
		return inside, outside, nil
	}
	ignored, err := b.ignored(unknown)
	if err != nil {
		return nil, nil, err
	}
	removed, err := b.removed(unknown, ignored, b.parent)
	if err != nil {
		return nil, nil, err
	}
	for _, c := range unknown {
		name := c.Path
		if c.From != "" {
			name = c.From
		}
		switch {
		case removed[name] && !ignored[name]:
			inside = append(inside, c)
		case c.From != "" && (!ignored[c.Path] || c.Tracked):
			gone, added := c.halves()
			inside, outside = append(inside, added), append(outside, gone.Path)
		case c.Tracked && c.After != nil && !ignored[name] && b.parent != "":
			c.Before = nil // for git it is new
			inside = append(inside, c)
		case c.From != "":
			outside = append(outside, c.From, c.Path)
		default:
			outside = append(outside, c.Path)
		}
	}
	if b.parent == "" && len(inside) == 0 && slices.ContainsFunc(outside, func(name string) bool { return !ignored[name] }) {
		return nil, nil, fmt.Errorf("its repository has no commit, so that no branch can have %q as a change: make a first commit in the folder", outside[0])
	}
	Sort(inside)
	slices.Sort(outside)
	return inside, outside, nil
}

// withoutRefused splits changes: of refused, no tree can have the version of the workspace.
func (b *branch) withoutRefused(changes []Change, h *History) (rest []Change, refused []string, err error) {
	bad, err := b.own.refused(changes, after, strings.Repeat("1", len(b.noObject())))
	if err != nil {
		return nil, nil, err
	}
	rest, refused = leave(changes, h, func(name string) bool { return bad[name] || gitignore.Inside(name) })
	return rest, refused, nil
}

// leave splits changes: of left, the version of the workspace comes to no branch.
func leave(changes []Change, h *History, is func(name string) bool) (rest []Change, left []string) {
	for _, c := range changes {
		some := []Change{c}
		if c.From != "" && (is(c.From) || is(c.Path)) {
			gone, added := c.halves()
			some = []Change{gone, added}
		}
		for _, c := range some {
			if !is(c.Path) {
				rest = append(rest, c)
				continue
			}
			if left = append(left, c.Path); h != nil {
				if h.Apart == nil {
					h.Apart = make(map[string]bool)
				}
				h.Apart[c.Path] = true
			}
		}
	}
	Sort(rest)
	slices.Sort(left)
	return rest, left
}

// inSubmodules splits changes: of those inside submodules the branch has only a commit.
func (b *branch) inSubmodules(changes []Change) (rest []Change, inside []string) {
	return leave(changes, nil, func(name string) bool {
		return slices.ContainsFunc(above(name), func(dir string) bool { return b.entries[dir].mode == "160000" })
	})
}

// ignored returns the paths, old and new, that the target ignores.
func (b *branch) ignored(changes []Change) (map[string]bool, error) {
	top, err := openFolder(b.top)
	if err != nil {
		return nil, err
	}
	defer top.close()
	var list strings.Builder
	for _, c := range changes {
		for _, name := range []string{c.Path, c.From} {
			if !usable(name) {
				continue
			}
			name = b.prefix + name
			fd, err := top.at(path.Dir(name))
			if err == nil {
				_ = unix.Close(fd)
			}
			if err == nil || errors.Is(err, unix.ENOENT) { // git takes no path through a link
				list.WriteString("./" + name + "\x00") // never magic
			}
		}
	}
	in := *b.own
	in.dir, in.env = b.top, append(slices.Clone(in.env), "GIT_WORK_TREE="+b.top)
	out, err := in.run(strings.NewReader(list.String()), "check-ignore", "-z", "--stdin", "--no-index")
	if status(err) == 1 {
		return nil, nil
	}
	return b.below(bytes.ReplaceAll(append([]byte{0}, out...), []byte("\x00./"), []byte{0})), err
}

// removed returns the paths that commits of the branch have removed, and that are not ignored.
func (b *branch) removed(changes []Change, ignored map[string]bool, commits ...string) (map[string]bool, error) {
	var list strings.Builder
	for _, c := range changes {
		if name := cmp.Or(c.From, c.Path); !ignored[name] {
			list.WriteString(pathspec(b.prefix+name) + "\n")
		}
	}
	if b.parent == "" || list.Len() == 0 {
		return nil, nil
	}
	args := []string{"log", "--stdin", "--format=", "--name-only", "-z", "--no-renames", "--diff-filter=D"}
	out, err := b.own.run(strings.NewReader("--\n"+list.String()), append(args, commits...)...)
	return b.below(out), err
}

// literally makes a pattern match only what it is, with any character for those that end a line.
var literally = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "\n", "?", "\r", "?")

// pathspec names a path in one line.
func pathspec(name string) string {
	if strings.ContainsAny(name, "\n\r") {
		return ":(glob)" + literally.Replace(name)
	}
	return ":(literal)" + name
}

// below returns the paths of a list of git, relative to the folder.
func (b *branch) below(list []byte) map[string]bool {
	all := make(map[string]bool)
	for name := range strings.SplitSeq(string(list), "\x00") {
		if name, ok := strings.CutPrefix(name, b.prefix); ok {
			all[name] = true
		}
	}
	return all
}

// side is a side of changes: the path, the version and the file with its content.
type side func(c *Change) (name string, f *File, content string)

func before(c *Change) (string, *File, string) {
	if c.From != "" {
		return c.From, c.Before, c.BeforeFile()
	}
	return c.Path, c.Before, c.BeforeFile()
}

func after(c *Change) (string, *File, string) { return c.Path, c.After, c.AfterFile() }

// convert makes both sides of changes what git stores of them: with the ends of lines and
// through the filters that the attributes of the branch name, as `git add` does. Of the sandbox,
// only the attributes count that come to the branch as they are, and if they are not committed, no
// filters.
func (b *branch) convert(changes []Change) ([]Change, error) {
	out := slices.Clone(changes)
	dir := filepath.Join(b.own.dir, "converted")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	for i := range out {
		out[i].dir = dir
	}
	for name, of := range map[string]side{"before": before, "after": after} {
		if err := b.convertSide(name, of, changes, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// convertSide has git store the files of a side in an index of its own, and replaces those that
// it stores in another way.
func (b *branch) convertSide(side string, of side, changes, out []Change) error {
	with := *b.own
	with.dir = filepath.Join(b.own.dir, side)
	with.env = append(slices.Clone(with.env), "GIT_WORK_TREE="+with.dir, "GIT_INDEX_FILE="+with.dir+".index")
	if err := os.Mkdir(with.dir, 0o700); err != nil {
		return err
	}
	var placed []int
	var plain, paths []string
	for i := range changes {
		name, f, content := of(&changes[i])
		if f == nil || f.TooLarge {
			continue
		}
		_, _, to := of(&out[i])
		if err := link(content, to); err != nil {
			return err
		}
		if _, err := b.entry(name); f.Link || !usable(name) || path.Base(name) == ".gitattributes" || err != nil {
			continue
		}
		object, err := b.blobName(content)
		if err != nil {
			return err
		}
		if side == "before" && object == b.entries[name].object {
			continue // the branch may have it as it is in the workspace, by a commit from there
		}
		placed, plain, paths = append(placed, i), append(plain, object), append(paths, b.prefix+name)
		if err := link(content, filepath.Join(with.dir, b.prefix+name)); err != nil {
			return err
		}
	}
	if err := b.seed(&with, paths); err != nil {
		return err
	}
	stored, err := b.stored(&with, listed(paths))
	var unfit map[string]string
	if status(err) > 0 {
		failed := err
		if stored, unfit, err = b.storedApart(&with, paths, err); err == nil && len(stored)+len(unfit) < len(paths) {
			err = failed // a filter, without which the branch would get what that hides
		}
	}
	if err != nil {
		return err
	}
	if side == "after" {
		if err := b.storeByNew(&with, changes, paths, stored); err != nil {
			return err
		}
		b.unfit, b.unknown = make(map[string]bool), make(map[string]bool)
		for n, full := range paths {
			name := strings.TrimPrefix(full, b.prefix)
			encoding, is := unfit[full]
			if !is || stored[full] != "" || plain[n] == b.entries[name].object || plain[n] == b.joins[name].tip.object {
				continue // it is stored by new attributes, or a commit has it as it is
			}
			if b.unfit[name] = true; encoding != "" {
				b.unknown[encoding] = true
			}
		}
	}
	for n, i := range placed {
		object := stored[paths[n]]
		c := &out[i]
		_, f, _ := of(c)
		if object == plain[n] || object == "" {
			continue
		}
		content, err := b.objects.content(object, maxRead)
		if err != nil {
			return err
		}
		now := versionOf(f, content)
		if f == c.Before {
			c.Before = now
		} else {
			c.After = now
		}
		if err := os.WriteFile(ContentFile(c.dir, now), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// seed fills an index with what git needs of the branch to store files: their entries, which say
// whether the ends of their lines are converted, and all attributes.
func (b *branch) seed(with *git, paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	var entries strings.Builder
	for name, e := range b.attributes {
		fmt.Fprintf(&entries, "%s %s 0\t%s\x00", e.mode, e.object, name)
	}
	for _, name := range paths {
		if e, ok := b.entries[strings.TrimPrefix(name, b.prefix)]; ok {
			fmt.Fprintf(&entries, "%s %s 0\t%s\x00", e.mode, e.object, name)
		}
	}
	_, err := with.run(strings.NewReader(entries.String()), "update-index", "-z", "--index-info")
	return err
}

// stored adds the files of a list to an index, and returns the objects of all that it has.
func (b *branch) stored(with *git, list string) (map[string]string, error) {
	if list == "" {
		return nil, nil
	}
	if err := b.agreed(with, list); err != nil {
		return nil, err
	}
	if _, err := with.asUser().run(strings.NewReader(list), "update-index", "--add", "--replace", "-z", "--stdin"); err != nil {
		return nil, err
	}
	out, err := with.run(nil, "ls-files", "-s", "-z")
	all := make(map[string]string)
	for entry := range strings.SplitSeq(string(out), "\x00") {
		meta, name, _ := strings.Cut(entry, "\t")
		if words := strings.Fields(meta); len(words) == 3 {
			all[name] = words[1]
		}
	}
	return all, err
}

// attributes returns the values of attributes of each path of a list.
func (g *git) attributes(list string, names ...string) (map[string][]string, error) {
	out, err := g.run(strings.NewReader(list), append([]string{"check-attr", "--cached", "-z", "--stdin"}, names...)...)
	all := make(map[string][]string)
	words := strings.Split(string(out), "\x00")
	for i := 2; i < len(words); i += 3 {
		all[words[i-2]] = append(all[words[i-2]], words[i])
	}
	return all, err
}

// filters returns the filter of each path of a list.
func (g *git) filters(list string) (map[string]string, error) {
	attributes, err := g.attributes(list, "filter")
	all := make(map[string]string)
	for name, values := range attributes {
		all[name] = values[0]
	}
	return all, err
}

// agreed refuses paths that need filters which nobody agreed to.
func (b *branch) agreed(with *git, list string) error {
	if len(b.filters) == 0 {
		return nil
	}
	filters, err := with.filters(list)
	if err != nil {
		return err
	}
	var used []string
	for _, one := range filters {
		if slices.Contains(b.filters, one) && !slices.Contains(used, one) {
			used = append(used, one)
		}
	}
	if len(used) > 0 {
		slices.Sort(used)
		return &FilterError{used}
	}
	return nil
}

// link gives a file another name, or copies it to another file system. A file that is there
// has the same content.
func link(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if err := os.Link(from, to); err == nil || errors.Is(err, fs.ErrExist) {
		return nil
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o600)
}

// versionOf is a version with another content.
func versionOf(f *File, content []byte) *File {
	out := *f
	out.Size, out.Sum = int64(len(content)), sha256.Sum256(content)
	return &out
}

// storeByNew replaces the objects of files that git stores otherwise by attributes which come to the
// branch with them. If these change the filter of a file, they do not count for it: the sandbox
// neither chooses a program nor takes one away, such as one that encrypts. Nor do they for files
// that git cannot store by them.
func (b *branch) storeByNew(with *git, changes []Change, paths []string, stored map[string]string) error {
	attributes, err := b.newAttributes(changes)
	if attributes == "" || len(paths) == 0 || err != nil {
		return err
	}
	before, err := with.filters(listed(paths))
	if err != nil {
		return err
	}
	fresh := *with
	fresh.env = append(slices.Clone(with.env), "GIT_INDEX_FILE="+with.dir+".new")
	if err := b.seed(&fresh, paths); err != nil {
		return err
	}
	// Only the index has them, as they are, so that git stores by what it says about filters.
	if _, err := fresh.run(strings.NewReader(attributes), "update-index", "-z", "--index-info"); err != nil {
		return err
	}
	after, err := fresh.filters(listed(paths))
	if err != nil {
		return err
	}
	same := slices.DeleteFunc(slices.Clone(paths), func(name string) bool { return before[name] != after[name] })
	anew, err := b.stored(&fresh, listed(same))
	if status(err) > 0 {
		if anew, _, err = b.storedApart(&fresh, same, err); status(err) > 0 {
			err = nil
		}
	}
	for _, name := range same {
		if anew[name] != "" {
			stored[name] = anew[name]
		}
	}
	return err
}

// newAttributes lists for an index the attributes among changes that come to the branch as they are.
func (b *branch) newAttributes(changes []Change) (string, error) {
	var list strings.Builder
	var names, files []string
	var committed map[string]twoEntries // exactly takes what the workspace has of these
	if b.exact {
		var err error
		if committed, err = b.differing(b.copied, b.parent); err != nil {
			return "", err
		}
	}
	for _, c := range changes {
		if path.Base(c.Path) != ".gitattributes" || c.From != "" || !usable(c.Path) || c.TooLarge() || c.After != nil && c.After.Link {
			continue
		}
		ours, err := b.state(c.Path)
		if ignoreBlocked(err) != nil {
			return "", err
		}
		if _, replaced := committed[c.Path]; err != nil || !Same(ours, c.Before) && !replaced {
			continue // the branch may get other ones
		}
		if c.After == nil {
			fmt.Fprintf(&list, "0 %s\t%s\x00", b.noObject(), b.prefix+c.Path)
			continue
		}
		names, files = append(names, b.prefix+c.Path), append(files, c.AfterFile())
	}
	objects, err := b.own.blobs(files)
	for i, object := range objects {
		fmt.Fprintf(&list, "100644 %s 0\t%s\x00", object, names[i])
	}
	return list.String(), err
}
