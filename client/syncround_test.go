package client

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// A sync that gives up says what it could not bring: in its last round the sandbox changes the file
// that every round before has brought.
func TestTheLastRoundOfASyncTellsOfWhatItCouldNotBring(t *testing.T) {
	t.Setenv("AGBOX_HOME", t.TempDir())
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "f"), []byte("of the folder\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var writes atomic.Int64
	c, _ := serveFiles(t, &fileScript{
		stat: isFile,
		out: func(*agboxv1.CopyOutRequest, grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			return reject(codes.NotFound, agboxv1.ErrorReason_FILE_NOT_FOUND, "none")
		},
		compare: func(_ *agboxv1.CompareWorkspaceRequest, out grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error {
			err := out.Send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Base{Base: &agboxv1.WorkspaceBase{Source: folder, Target: "/workspace"}}})
			file := &agboxv1.AdvancedFile{Path: []byte("f"), File: &agboxv1.WorkspaceFile{Sha256: make([]byte, 32)}}
			return errors.Join(err, out.Send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_BaseFile{BaseFile: file}}))
		},
		put: func(in grpc.ClientStreamingServer[agboxv1.WriteFileRequest, agboxv1.WriteFileResponse]) error {
			if writes.Add(1) == maxRounds {
				return reject(codes.Aborted, agboxv1.ErrorReason_FILE_CHANGED, "changed")
			}
			for {
				if _, err := in.Recv(); errors.Is(err, io.EOF) {
					return in.SendAndClose(&agboxv1.WriteFileResponse{})
				} else if err != nil {
					return err
				}
			}
		},
		advance: func(in grpc.ClientStreamingServer[agboxv1.AdvanceBaseRequest, agboxv1.AdvanceBaseResponse]) error {
			for {
				if _, err := in.Recv(); errors.Is(err, io.EOF) {
					return in.SendAndClose(&agboxv1.AdvanceBaseResponse{})
				} else if err != nil {
					return err
				}
			}
		},
	})
	s := &syncing{c: c, data: t.TempDir(), id: "s", conflicts: make(map[string]string), from: &Work{}}
	defer s.close()
	if err := s.settle(t.Context()); err != nil || writes.Load() != maxRounds {
		t.Fatalf("%d rounds, %v", writes.Load(), err)
	}
	if s.conflicts["f"] != sandboxRefuses(&Error{Reason: agboxv1.ErrorReason_FILE_CHANGED.String()}) {
		t.Errorf("the conflicts are %q", s.conflicts)
	}
}

// What git has checked out by half is nobody's change.
func TestASyncWaitsForGit(t *testing.T) {
	folder := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.org"}, args...)...)
		cmd.Dir = folder
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "-b", "main")
	git("commit", "-q", "--allow-empty", "-m", "one")
	w := &Work{Source: folder, branchCommits: []string{git("rev-parse", "HEAD")}}
	w.current = w.branchCommits
	s := new(syncing)
	moved := func(when string, want bool) {
		t.Helper()
		if got, err := s.headMoved(t.Context(), w); got != want || err != nil {
			t.Errorf("%s: %t, %v", when, got, err)
		}
	}
	look := func(n int) {
		t.Helper()
		if err := w.findMerged(t.Context()); err != nil || len(w.merged.Has) != n {
			t.Errorf("%v, and merged are %+v", err, w.merged)
		}
	}
	look(1)
	moved("nothing happens", false)
	git("commit", "-q", "--allow-empty", "-m", "two")
	moved("HEAD is another commit", true)
	git("config", "core.sparseCheckout", "true")
	moved("some files are gone", true)
	look(0)
	git("config", "core.sparseCheckout", "false")
	moved("all files are there again", true)
	look(1)
	lock := filepath.Join(folder, ".git/index.lock")
	if err := os.WriteFile(lock, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.headMoved(ctx, w); !errors.Is(err, context.Canceled) {
		t.Errorf("somebody gives up: %v", err)
	}
	s.waited = longestGit
	moved("git was killed long ago", false)
	s.waited = 0
	look(1) // the lock of a git that asks for a message hides nothing
	go func() {
		if err := os.Remove(lock); err != nil {
			t.Error(err)
		}
	}()
	moved("git has worked on it", true)
	s.last = true
	moved("the last round", false)
}
