package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

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

// TestAFolderThatDoesNotAnswerEndsNoLookLate: git, or what it runs, may wait for a mount whose
// server is gone, and cannot be killed.
func TestAFolderThatDoesNotAnswerEndsNoLookLate(t *testing.T) {
	bin := t.TempDir()
	fifo := filepath.Join(bin, "fifo")
	err := errors.Join(unix.Mkfifo(fifo, 0o600),
		os.WriteFile(filepath.Join(bin, "git"), []byte("#!/bin/sh\ncat '"+fifo+"'\n"), 0o700))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waits := make(chan *os.File, 1)
	go func() {
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0) // when git waits for it
		if err != nil {
			t.Error(err)
		}
		cancel()
		waits <- f
	}()
	w := &Work{Source: bin, branchCommits: []string{strings.Repeat("1", 40)}}
	if err := w.findLost(ctx); !errors.Is(err, context.Canceled) || len(w.lost) > 0 {
		t.Errorf("%v, and lost are %v", err, w.lost)
	}
	if f := <-waits; f != nil {
		_ = f.Close() // lets git end
	}
	// Nor does the folder decide about any file afterwards.
	w.Changes, w.again = []WorkChange{{Path: "gone"}}, map[string]bool{"gone": true}
	if err := w.leaveCopies(ctx); !errors.Is(err, context.Canceled) || len(w.Changes) != 1 {
		t.Errorf("%v, and of the changes %v are left", err, w.Changes)
	}
}

// TestCommitsOfABranchAreLostIfGitFails: then the work is shown and kept.
func TestCommitsOfABranchAreLostIfGitFails(t *testing.T) {
	w := &Work{Source: t.TempDir(), branchCommits: []string{strings.Repeat("1", 40)}}
	if err := w.findLost(t.Context()); !errors.Is(err, errLost) || len(w.lost) != 1 {
		t.Errorf("%v, and lost are %v", err, w.lost)
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
