package edits

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

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

// storedAs reports which files in a folder git stores as the objects, under the attributes of a
// commit. It leaves out those that git does not store here as these say. settings are more variables.
func (b *branch) storedAs(dir, commit string, objects map[string]string, settings ...string) (map[string]bool, error) {
	same := make(map[string]bool)
	if len(objects) == 0 {
		return same, nil
	}
	with := *b.own
	with.dir, with.env = dir, slices.Concat(with.env, []string{"GIT_WORK_TREE=" + dir, "GIT_INDEX_FILE=" + dir + ".index"}, settings)
	if _, err := with.run(nil, "read-tree", commit); err != nil {
		return nil, err
	}
	names := slices.Collect(maps.Keys(objects))
	stored, err := b.stored(&with, listed(names))
	if status(err) > 0 { // a filter cannot store one
		if stored, _, err = b.storedApart(&with, names, err); status(err) > 0 {
			err = &HistoryError{err}
		}
	}
	var others []string
	for name, object := range objects {
		if is, ok := stored[name]; ok {
			same[name] = is == object
		}
		if !same[name] {
			others = append(others, name)
		}
	}
	if len(others) == 0 || err != nil {
		return same, err
	}
	filters, err := with.filters(listed(others))
	for name, filter := range filters {
		if !slices.Contains([]string{"unspecified", "unset", "set"}, filter) && !b.cleans[filter] {
			delete(same, name)
		}
	}
	return same, err
}

// maxApart is how many filters and encodings are tried apart, and how many files that do not have
// their encoding are found: each needs processes of git.
const maxApart = 100

// storedApart is stored for each filter and encoding apart. It leaves out the files of filters that
// fail, and those that do not have the encoding of their attributes: these are unfit, with the name
// of an encoding that git does not know. Beyond maxApart it leaves out more, and returns the error of
// git: failed is that for all of them.
func (b *branch) storedApart(with *git, names []string, failed error) (all, unfit map[string]string, err error) {
	attributes, err := with.attributes(listed(names), "working-tree-encoding", "filter")
	if err != nil {
		return nil, nil, err
	}
	alike := make(map[[2]string][]string)
	for _, name := range names {
		key := [2]string(attributes[name])
		alike[key] = append(alike[key], name)
	}
	all, unfit = make(map[string]string), make(map[string]string)
	if len(alike) > maxApart {
		return all, unfit, failed
	}
	var beyond error
	unknown := make(map[string][]string)
	for key, some := range alike {
		stored, err := b.stored(with, listed(some))
		if status(err) > 0 && key[0] != "unspecified" && !b.cleans[key[1]] { // no filter has failed
			known, unable := b.knows(key[0])
			if unable != nil {
				return nil, nil, unable
			}
			if !known {
				unknown[key[0]] = append(unknown[key[0]], some...)
				continue
			}
			if some, err = with.fitting(some, unfit); err == nil {
				stored, err = b.stored(with, listed(some))
			} else if status(err) > 0 {
				beyond = failed
			}
		}
		if status(err) > 0 {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		for _, name := range some {
			all[name] = stored[name]
		}
	}
	for encoding, some := range unknown {
		for _, name := range some {
			unfit[name] = encoding
		}
	}
	return all, unfit, beyond
}

// fitting returns the files that git can store, and notes the others: it ends at the first one that
// it cannot. Beyond maxApart others it returns git's error.
func (g *git) fitting(names []string, unfit map[string]string) (fit []string, err error) {
	for len(names) > 0 {
		out, err := g.asUser().run(strings.NewReader(listed(names)), "update-index", "--verbose", "--add", "--replace", "-z", "--stdin")
		if err != nil && (status(err) <= 0 || len(unfit) >= maxApart) {
			return nil, err
		}
		n, said := 0, string(out)
		for ; n < len(names); n++ {
			rest, is := strings.CutPrefix(said, "add '"+names[n]+"'\n")
			if !is {
				unfit[names[n]] = ""
				break
			}
			said = rest
		}
		fit, names = append(fit, names[:n]...), names[min(n+1, len(names)):]
	}
	return fit, nil
}

// knows reports whether git knows an encoding: there is a text that it stores by it.
func (b *branch) knows(encoding string) (bool, error) {
	dir, err := os.MkdirTemp(b.own.dir, "encoding")
	if err != nil {
		return false, err
	}
	g, err := scratchRepository(b.own.ctx, dir)
	if err != nil {
		return false, err
	}
	info := filepath.Join(g.gitDir, "info")
	if err := errors.Join(os.MkdirAll(info, 0o700), os.WriteFile(filepath.Join(info, "attributes"), []byte("* working-tree-encoding="+encoding+"\n"), 0o600)); err != nil {
		return false, err
	}
	for _, text := range []string{"a\n", "\x00\x00\x00\x00", "\xff\xfe\x00\x00"} { // of one byte, of two or four, and with their order
		_, err := g.run(strings.NewReader(text), "hash-object", "-w", "--stdin", "--path=a")
		if status(err) <= 0 {
			return err == nil, err
		}
	}
	return false, nil
}

// listed lists paths for git.
func listed(names []string) string {
	var list strings.Builder
	for _, name := range names {
		list.WriteString(name + "\x00")
	}
	return list.String()
}
