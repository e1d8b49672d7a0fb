package edits

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// minPointer and maxPointer bound the size of what git-lfs has git store, in bytes, unless it has
// extensions.
const minPointer, maxPointer = 120, 200

var lfsPointer = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^version https://git-lfs\.github\.com/spec/v1\noid sha256:([0-9a-f]{64})\nsize [0-9]+\n$`)
})

// pointersOf returns the ids of the contents that objects of commits name for git-lfs, with their
// paths. paths are those of the objects. What references of the repository have is not the sandbox's:
// its contents are where they were.
func (b *branch) pointersOf(h *History, paths map[string]string) (map[string]string, error) {
	if len(paths) == 0 {
		return nil, nil
	}
	var names bytes.Buffer
	for object := range paths {
		names.WriteString(object + "\n")
	}
	list := names.Bytes()
	g := *b.own
	g.bounded, g.limited, g.memory = true, true, listMemory
	out, err := g.run(bytes.NewReader(list), "cat-file", "--batch-check=%(objectname) %(objectsize)")
	if err != nil {
		return nil, err
	}
	had, err := b.refs.run(bytes.NewReader(list), "cat-file", "--batch-check=%(objectname)")
	if err != nil {
		return nil, err
	}
	has := make(map[string]bool)
	for line := range strings.Lines(string(had)) {
		has[strings.TrimSpace(line)] = true // "OBJECT missing" is none
	}
	found := make(map[string]string)
	var fresh map[string]bool
	for line := range strings.Lines(string(out)) {
		object, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if size, err := strconv.Atoi(text); err != nil || size < minPointer || size > maxPointer {
			continue
		}
		if has[object] && fresh == nil { // maybe by an earlier call, whose branch is gone
			if fresh, err = b.unnamed(h); err != nil {
				return nil, err
			}
		}
		if has[object] && !fresh[object] {
			continue
		}
		content, err := b.objects.content(object, maxPointer)
		if err != nil {
			return nil, fmt.Errorf("look for contents of git-lfs: %w", err)
		}
		if is := lfsPointer().FindSubmatch(content); is != nil {
			found[string(is[1])] = paths[object]
		}
	}
	return found, nil
}

// unnamed returns the objects of the sandbox's commits that no reference of the target has.
func (b *branch) unnamed(h *History) (map[string]bool, error) {
	head, err := b.commitOf("HEAD")
	if err != nil {
		return nil, err
	}
	revs := h.Tip + "\n^" + h.Copied + "\n"
	if head != "" {
		revs += "^" + head + "\n"
	}
	refs, err := b.refs.run(nil, "for-each-ref", "--format=^%(objectname)")
	if err != nil {
		return nil, err
	}
	g := *b.own
	g.bounded, g.limited, g.memory = true, true, listMemory
	out, err := g.run(strings.NewReader(revs+string(refs)), "rev-list", "--objects", "--no-object-names", "--ignore-missing", "--stdin")
	all := make(map[string]bool)
	for object := range strings.FieldsSeq(string(out)) {
		all[object] = true
	}
	return all, err
}

// leftInLFS returns the paths whose contents the storage of git-lfs does not have.
func (b *branch) leftInLFS() (paths []string) {
	for id, name := range b.pointers {
		if !exists(filepath.Join(b.lfs, "objects", id[:2], id[2:4], id)) {
			paths = append(paths, name)
		}
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}
