package client

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/filesystem"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// maxNamed bounds the files that a file names, directly or not.
const maxNamed = 128

// addNamed adds the files that a base file names: compose files, files of variables and
// features. A missing one is left out, which the daemon reports with its line.
func (s SpecFiles) addNamed(in *SpecInput, file *agboxv1.ConfigFile) error {
	root := filepath.Dir(file.GetPath())
	if file.GetFormat() == agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER {
		root = document.ProjectOf(file.GetPath())
		if err := s.addFeatures(in, file); err != nil {
			return err
		}
	}
	return s.addNamedBy(in, file, root, file.GetPath(), file.GetFormat(), file.GetContent(), file.GetVariables())
}

// addDockerfiles adds the Dockerfiles that a file builds with to what a person agrees to: a
// change of one asks again. Missing ones, and those outside of root, are left to the daemon.
func addDockerfiles(in *SpecInput, root, path string, format agboxv1.ConfigFormat, content []byte) error {
	for _, name := range document.DockerfilesIn(format, content) {
		text, found, err := readBeside(root, absolute(filepath.Dir(path), name))
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, filesystem.ErrOutside):
		case err != nil:
			return err
		default:
			in.Files = append(in.Files, SpecSource{Path: found, Content: text})
		}
	}
	return nil
}

// addNamedBy adds the files that one file names, and those that they name. All are below
// root.
func (s SpecFiles) addNamedBy(in *SpecInput, to *agboxv1.ConfigFile, root, path string, format agboxv1.ConfigFormat, content []byte, values map[string]string) error {
	if err := addDockerfiles(in, root, path, format, content); err != nil {
		return err
	}
	for _, n := range document.NamedIn(format, content, values) {
		if isAdded(to, absolute(filepath.Dir(path), n.Name)) {
			continue
		}
		content, found, err := readBeside(root, absolute(filepath.Dir(path), n.Name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case len(to.GetFiles()) == maxNamed:
			return &Error{Code: codes.InvalidArgument, Message: fmt.Sprintf("The file %s names more than %d files, with those that they name: name fewer.", to.GetPath(), maxNamed)}
		}
		in.Files = append(in.Files, SpecSource{Path: found, Content: content, Secret: n.Secret})
		named := &agboxv1.NamedFile{Name: n.Name, Path: found, Content: content}
		to.Files = append(to.Files, named)
		if n.Secret {
			continue
		}
		if named.Variables, err = s.variables(in, n.Format, found, content); err != nil {
			return err
		}
		if err := s.addNamedBy(in, to, root, found, n.Format, content, named.GetVariables()); err != nil {
			return err
		}
	}
	return nil
}

func isAdded(to *agboxv1.ConfigFile, path string) bool {
	for _, f := range to.GetFiles() {
		if f.GetPath() == path {
			return true
		}
	}
	return false
}
