package review

import (
	"archive/tar"
	"path"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// maxRepositories is how many nested repositories a comparison sends. One more than a client reads:
// so it knows that there are more.
const maxRepositories = 257

// repository sends a folder that has a .git, once. What is ignored counts only if files of it were
// copied.
func (c *comparison) repository(dir string, h *tar.Header, ignored bool) error {
	if !Valid(dir) || c.foreign(dir) || c.repositories[dir] || len(c.repositories) == maxRepositories || ignored && !c.hasFolder(dir) {
		return nil
	}
	if c.repositories == nil {
		c.repositories = make(map[string]bool)
	}
	c.repositories[dir] = true
	return c.send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Repository{
		Repository: &agboxv1.WorkspaceRepository{Path: []byte(dir), File: h.Typeflag != tar.TypeDir},
	}})
}

// hasFolder reports whether the base has files below a folder.
func (c *comparison) hasFolder(dir string) bool {
	if c.copied == nil {
		c.copied = make(map[string]bool)
		for _, f := range c.base.GetFiles() {
			for up := path.Dir(string(f.GetPath())); up != "." && !c.copied[up]; up = path.Dir(up) {
				c.copied[up] = true
			}
		}
	}
	return c.copied[dir]
}
