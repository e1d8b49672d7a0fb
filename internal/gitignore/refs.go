package gitignore

import (
	"errors"
	"regexp"
	"slices"
	"strings"
)

// ErrReferences is the error for references of git in a form that HeadCommit does not read.
var ErrReferences = errors.New("references of git in an unknown form")

var (
	commit    = regexp.MustCompile("^([0-9a-f]{40}|[0-9a-f]{64})$")
	reference = regexp.MustCompile(`^refs/[^\x00-\x20]+$`)
)

// maxSymbolic is how many symbolic references are followed, as by git.
const maxSymbolic = 5

// IsCommit reports whether a text is the name of an object of git.
func IsCommit(text string) bool { return commit.MatchString(text) }

// HeadCommit returns the commit that HEAD of a repository names; "" if it has none yet. read
// returns the trimmed text of a file of the folder .git, or "" if there is none.
func HeadCommit(read func(name string) (string, error)) (string, error) {
	name := "HEAD"
	for range maxSymbolic + 1 {
		text, err := read(name)
		if text == "" && err == nil && name != "HEAD" {
			var packed string
			packed, err = read("packed-refs")
			text = Packed(packed)[name]
		}
		if text == "" || err != nil || IsCommit(text) {
			return text, err
		}
		next, symbolic := strings.CutPrefix(text, "ref:")
		// A repository that keeps its references in tables has refs/heads/.invalid in HEAD.
		if name = strings.TrimSpace(next); !symbolic || !reference.MatchString(name) || slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return strings.HasPrefix(part, ".") }) {
			return "", ErrReferences
		}
	}
	return "", ErrReferences
}

// Packed returns the commits of the references in the file packed-refs, by their names.
func Packed(text string) map[string]string {
	all := make(map[string]string)
	for line := range strings.Lines(text) {
		if at, of, _ := strings.Cut(strings.TrimSpace(line), " "); IsCommit(at) {
			all[of] = at
		}
	}
	return all
}

// Repository returns the folder of a repository below the top of a tree, if a path is its .git.
func Repository(path string) (dir string, is bool) {
	dir, is = strings.CutSuffix(path, "/.git")
	return dir, is && !Inside(dir)
}
