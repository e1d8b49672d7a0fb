package client

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/agbox/agbox/internal/covers"
)

// configWatch notices which files a copy from a sandbox adds or changes that the host
// executes, or that agbox reads the next time (package covers).
type configWatch struct {
	root *os.Root
	dir  string
	// before is what each of them was before the copy, by its name in dir.
	before map[string]string
}

// watchConfigs prepares the watch of a directory.
func watchConfigs(dir string) (*configWatch, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(abs)
	if err != nil {
		return nil, err
	}
	return &configWatch{root: root, dir: abs, before: make(map[string]string)}, nil
}

// replaced is called before a file is made or replaced.
func (w *configWatch) replaced(name string) {
	if _, known := w.before[name]; known {
		return
	}
	if _, ok := covers.Find(filepath.Join(w.dir, name)); ok {
		w.before[name] = w.state(name)
	}
}

// tell reports what has changed, in the order of the names.
func (w *configWatch) tell(changed func(path string, added bool)) {
	for _, name := range slices.Sorted(maps.Keys(w.before)) {
		if before := w.before[name]; before != w.state(name) {
			changed(filepath.Join(w.dir, name), before == "")
		}
	}
}

// state stands for the content of a file; "" if there is none.
func (w *configWatch) state(name string) string {
	st, err := w.root.Lstat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return ""
	case err != nil || !st.Mode().IsRegular() && st.Mode()&fs.ModeSymlink == 0:
		return fmt.Sprint("other ", err)
	case st.Mode()&fs.ModeSymlink != 0:
		to, _ := w.root.Readlink(name)
		return "link " + to
	}
	file, err := w.root.Open(name)
	if err != nil {
		return fmt.Sprint("other ", err)
	}
	defer file.Close() // only read
	sum := sha256.New()
	_, err = io.Copy(sum, file)
	return fmt.Sprintf("file %v %x %v", st.Mode().Perm(), sum.Sum(nil), err)
}
