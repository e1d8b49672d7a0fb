package edits

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	// maxObjects is the maximum size of the objects of a sandbox in bytes, without those that
	// the target has, maxFiles the number of their files, and maxArchive the size of all
	// that is read.
	maxObjects = 2 << 30
	maxFiles   = 200_000
	maxArchive = 16 << 30
)

var errTooMany = fmt.Errorf("its repository has more than %d new files of objects, or more than %d GiB", maxFiles, maxObjects>>30)

// isObject matches the files of objects that count: no index, no list and no reference to other
// folders.
var isObject = regexp.MustCompile(`^([0-9a-f]{2}/([0-9a-f]{38}|[0-9a-f]{62})|pack/pack-[0-9a-f]{40,64}\.pack)$`).MatchString

// unpackObjects stores the files of objects in an archive of a folder of objects in dir, and
// returns the packs. It leaves out what another folder of objects has under the same name.
func unpackObjects(in io.Reader, dir, has string) (packs []string, err error) {
	limited := &io.LimitedReader{R: in, N: maxArchive}
	size, files := int64(0), 0
	for all := tar.NewReader(limited); ; {
		h, err := all.Next()
		if errors.Is(err, io.EOF) {
			return packs, nil
		}
		if err != nil {
			if limited.N <= 0 {
				err = errTooMany
			}
			return nil, err
		}
		name := strings.TrimPrefix(h.Name, "objects/")
		if h.Typeflag != tar.TypeReg || !isObject(name) {
			continue
		}
		if _, err := os.Stat(filepath.Join(has, name)); err == nil {
			continue
		}
		size, files = size+h.Size, files+1
		if size > maxObjects || files > maxFiles {
			return nil, errTooMany
		}
		if err := store(filepath.Join(dir, name), all); err != nil {
			return nil, err
		}
		if strings.HasSuffix(name, ".pack") {
			packs = append(packs, filepath.Join(dir, name))
		}
	}
}

// store writes a file that must not exist.
func store(name string, content io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}
