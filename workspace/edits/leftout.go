package edits

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"path"
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
