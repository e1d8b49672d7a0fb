package edits

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

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
