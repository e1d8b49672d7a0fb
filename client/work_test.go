package client

import (
	"crypto/sha256"
	"errors"
	"os"
	"testing"

	"github.com/agbox/agbox/internal/edits"
	"github.com/agbox/agbox/internal/scratch"
)

// A daemon without contents_once sends the content of both sides of a file of which only the
// mode changed.
func TestBothSidesOfAChangeMayHaveTheSameContent(t *testing.T) {
	t.Setenv("AGBOX_HOME", t.TempDir())
	dir, err := scratch.New("work")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Remove()
	content := []byte("#!/bin/sh\n")
	before := &edits.File{Size: int64(len(content)), Sum: sha256.Sum256(content)}
	after := *before
	after.Executable = true
	s := &workStore{dir: dir}
	change := edits.NewChange(dir.Path, "run.sh", before, &after)
	if err := errors.Join(s.begin(change), s.add(s.before, content), s.add(s.after, content), s.end()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(change.AfterFile())
	if err != nil || string(got) != string(content) {
		t.Errorf("the content is %q, %v", got, err)
	}
	if entries, err := os.ReadDir(dir.Path); err != nil || len(entries) != 1 {
		t.Errorf("the folder has %v, %v", entries, err)
	}
}
