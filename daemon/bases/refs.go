package bases

import (
	"strings"

	"github.com/agbox/agbox/internal/gitignore"
)

// refs reads references of git while a workspace is packed.
type refs struct {
	files map[string]*strings.Builder
	// current is the file whose content arrives; nil if it names no reference.
	current *strings.Builder
}

// maxRefs is the maximum size of a file with references, in bytes. A larger one is cut.
const maxRefs = 16 << 20

// begin begins a file.
func (r *refs) begin(path string) {
	r.current = nil
	if name, ok := strings.CutPrefix(path, ".git/"); ok && (name == "HEAD" || name == "packed-refs" || strings.HasPrefix(name, "refs/heads/")) {
		if r.files == nil {
			r.files = make(map[string]*strings.Builder)
		}
		r.current = new(strings.Builder)
		r.files[name] = r.current
	}
}

func (r *refs) add(data []byte) {
	if r.current != nil && r.current.Len()+len(data) <= maxRefs {
		r.current.Write(data)
	}
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
