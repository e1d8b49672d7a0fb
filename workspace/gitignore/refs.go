package gitignore

import (
	"errors"
	"path"
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

// Fetched reports whether git keeps under the name of a reference what it has from another
// repository.
func Fetched(name string) bool {
	return strings.HasPrefix(name, "refs/remotes/") || strings.HasPrefix(name, "refs/prefetch/")
}

// WorkTree returns the folder that git keeps for a work tree whose .git is a file with this text, and
// that of its references, which several may share. They are empty if git does not take it for a
// repository. dir is the work tree. read returns the text of a file, or "" if there is none.
func WorkTree(dir, text string, read func(name string) (string, error)) (own, common string, err error) {
	name, is := strings.CutPrefix(text, "gitdir:")
	if !is {
		return "", "", nil
	}
	own = below(dir, strings.TrimSpace(name))
	shared, err := read(own + "/commondir")
	if shared == "" || err != nil {
		return own, own, err
	}
	return own, below(own, strings.TrimSpace(shared)), nil
}

// below returns the path of what a file of git in a folder names.
func below(dir, name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(dir, name)
}
