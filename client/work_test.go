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

// Commits count as brought only if the files of the call came.
func TestAPullThatWouldMergeBringsNoCommits(t *testing.T) {
	w := &Work{tip: "b", brought: "a"}
	would := AppliedWork{Outcomes: []WorkOutcome{{Kind: edits.Written}, {Kind: edits.Merged}}}
	if w.allCame(ApplyOptions{NoMerge: true}, would) {
		t.Error("nothing was brought, and the commits count as such")
	}
	if !w.allCame(ApplyOptions{}, would) || !w.allCame(ApplyOptions{NoMerge: true}, AppliedWork{Outcomes: would.Outcomes[:1]}) {
		t.Error("all was brought, and the commits do not count as such")
	}
}
