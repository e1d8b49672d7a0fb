package edits

import (
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// storeByNew replaces the objects of files that git stores otherwise by attributes which come to the
// branch with them. If these change the filter of a file, they do not count for it: the sandbox
// neither chooses a program nor takes one away, such as one that encrypts.
func (b *branch) storeByNew(with *git, changes []Change, paths []string, stored map[string]string) error {
	var attributes strings.Builder
	for _, c := range changes {
		if path.Base(c.Path) != ".gitattributes" || c.From != "" || !usable(c.Path) || c.TooLarge() || c.After != nil && c.After.Link {
			continue
		}
		if ours, err := b.state(c.Path); err != nil || !Same(ours, c.Before) {
			if ignoreBlocked(err) != nil {
				return err
			}
			continue // the branch may get other ones
		}
		name := b.prefix + c.Path
		attributes.WriteString(name + "\x00")
		if c.After == nil {
			continue
		}
		if err := link(c.AfterFile(), filepath.Join(with.dir, name)); err != nil {
			return err
		}
	}
	if attributes.Len() == 0 || len(paths) == 0 {
		return nil
	}
	list := strings.Join(paths, "\x00") + "\x00"
	before, err := with.filters(list)
	if err != nil {
		return err
	}
	fresh := *with
	fresh.env = append(slices.Clone(with.env), "GIT_INDEX_FILE="+with.dir+".new")
	if err := b.seed(&fresh, paths); err != nil {
		return err
	}
	if _, err := fresh.asUser().run(strings.NewReader(attributes.String()), "update-index", "--add", "--remove", "-z", "--stdin"); err != nil {
		return err
	}
	after, err := fresh.filters(list)
	if err != nil {
		return err
	}
	var same strings.Builder
	for _, name := range paths {
		if before[name] == after[name] {
			same.WriteString(name + "\x00")
		}
	}
	anew, err := b.stored(&fresh, same.String())
	for name := range strings.SplitSeq(same.String(), "\x00") {
		if anew[name] != "" {
			stored[name] = anew[name]
		}
	}
	return err
}
