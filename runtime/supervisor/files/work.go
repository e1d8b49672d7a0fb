package files

import (
	"errors"
	"io/fs"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/gitignore"
)

// scanWork changes the options of a copy out to those of a scan; nil changes nothing.
func scanWork(scan *guestv1.WorkScan, o *archive.PackOptions) error {
	if scan == nil {
		return nil
	}
	tree, err := gitignore.NewTree(scan.GetExcludePatterns(), scan.GetGitignore())
	if err != nil {
		return unusable(err)
	}
	since := time.Unix(0, scan.GetChangedSince())
	o.Filter = workFiles{tree}
	o.Changed = func(changed time.Time, size int64) bool {
		return !changed.Before(since) && (scan.GetMaxSize() == 0 || uint64(size) <= scan.GetMaxSize())
	}
	return nil
}

// workFiles excludes what is no work.
type workFiles struct{ tree *gitignore.Tree }

// Enter reads the folder's own .gitignore.
func (w workFiles) Enter(name string, dir int) error {
	if gitignore.InRepository(name) {
		return fs.SkipDir
	}
	if err := (kernelFiles{}).Enter(name, dir); err != nil {
		return err
	}
	return unusable(w.tree.Enter(name, dir))
}

// Skip excludes the inside of repositories, and what the patterns name. That there is a repository
// below the top is packed.
func (w workFiles) Skip(name string, isDir bool) (bool, error) {
	if _, nested := gitignore.Repository(name); gitignore.InRepository(name) && !nested {
		return true, nil
	}
	skip, err := w.tree.Skip(name, isDir)
	return skip, unusable(err)
}

// unusable explains an error of patterns, which are as hostile as all files in here.
func unusable(err error) error {
	var bad *gitignore.FileError
	if errors.As(err, &bad) {
		return invalid("cannot be compared, because patterns of ignored files cannot be used (%v)", bad)
	}
	return err
}
