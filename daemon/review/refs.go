package review

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/agbox/agbox/workspace/gitignore"
)

// refs reads references of git while a workspace is packed.
type refs struct {
	// files are those of the repository at the top that head needs.
	files map[string]*strings.Builder
	// current is the file whose content arrives, and name its name; nil if it has no reference.
	current *strings.Builder
	name    string
	// named is what references of all repositories name.
	named map[string]bool
}

// maxRefs is the maximum size of a file with references, in bytes. A larger one is cut. maxNamed is
// how many commits and tags of references are kept.
const (
	maxRefs  = 16 << 20
	maxNamed = 100_000
)

// beginAdvance begins a file.
func (r *refs) begin(name string) {
	r.finish()
	dir, base := path.Split(name)
	if !strings.Contains("/"+dir, "/.git/") || base != "HEAD" && base != "packed-refs" && !strings.Contains(dir, "/refs/") {
		return
	}
	r.current, r.name = new(strings.Builder), name
	if name, ok := strings.CutPrefix(name, ".git/"); ok && (name == "HEAD" || name == "packed-refs" || strings.HasPrefix(name, "refs/heads/")) {
		if r.files == nil {
			r.files = make(map[string]*strings.Builder)
		}
		r.files[name] = r.current
	}
}

func (r *refs) add(data []byte) {
	if r.current != nil && r.current.Len()+len(data) <= maxRefs {
		r.current.Write(data)
	}
}

// finish ends a file.
func (r *refs) finish() {
	if r.current == nil {
		return
	}
	text := r.current.String()
	r.current = nil
	if path.Base(r.name) != "packed-refs" {
		r.note(strings.TrimSpace(text))
		return
	}
	for _, commit := range gitignore.Packed(text) {
		r.note(commit)
	}
}

func (r *refs) note(commit string) {
	if r.named == nil {
		r.named = make(map[string]bool)
	}
	if gitignore.IsCommit(commit) && len(r.named) < maxNamed {
		r.named[commit] = true
	}
}

// all returns what references name, sorted.
func (r *refs) all() []string {
	r.finish()
	return slices.Sorted(maps.Keys(r.named))
}

// head returns the commit that HEAD names, or "".
func (r *refs) head() string {
	commit, _ := gitignore.HeadCommit(func(name string) (string, error) { // without one, commits do not come home
		if f := r.files[name]; f != nil {
			return strings.TrimSpace(f.String()), nil
		}
		return "", nil
	})
	return commit
}
