package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/workspace/edits"
)

// A daemon without contents_once sends the content of both sides of a file of which only the
// mode changed.
func TestBothSidesOfAChangeMayHaveTheSameContent(t *testing.T) {
	t.Setenv("AGBOX_HOME", t.TempDir())
	dir, err := filesystem.NewTempDir("work")
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
	if err := w.findLost(ctx, "", true); !errors.Is(err, context.Canceled) || len(w.lost) > 0 {
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
	if err := w.findLost(t.Context(), "", true); !errors.Is(err, errOther) || len(w.lost) != 1 {
		t.Errorf("%v, and lost are %v", err, w.lost)
	}
}

// TestMoreLostCommitsThanARequestMayNameLeaveNothingBrought to a branch.
func TestMoreLostCommitsThanARequestMayNameLeaveNothingBrought(t *testing.T) {
	t.Setenv("AGBOX_HOME", t.TempDir())
	rules := protovalidate.GlobalValidator
	base := &agboxv1.WorkspaceBase{Source: t.TempDir()} // no repository: all commits are lost
	var asked []*agboxv1.CompareWorkspaceRequest
	c, _ := serveFiles(t, &fileScript{compare: func(in *agboxv1.CompareWorkspaceRequest, out grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error {
		if asked = append(asked, in); rules.Validate(in) != nil {
			return status.Error(codes.InvalidArgument, rules.Validate(in).Error())
		}
		return out.Send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Base{Base: base}})
	}})
	for _, n := range []int{maxLost, maxLost + 1} {
		for len(base.BranchCommits) < n {
			base.BranchCommits = append(base.BranchCommits, fmt.Sprintf("%040x", len(base.BranchCommits)))
		}
		base.Brought, base.BroughtBy, asked = "tip", base.BranchCommits[n-1], nil
		w, err := c.Work(t.Context(), "s", WorkOptions{NamesOnly: true})
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		if len(asked) != 2 || len(w.lost) != n || w.brought != "" {
			t.Fatalf("of %d commits %d are lost after %d requests, and brought is %q", n, len(w.lost), len(asked), w.brought)
		}
		names, folder := asked[1].GetLostCommits(), asked[1].GetAgainst() == agboxv1.WorkBase_WORK_BASE_FOLDER
		if all := n <= maxLost; all != (len(names) == n) || all == folder {
			t.Errorf("of %d lost commits the request names %d, against %v", n, len(names), asked[1].GetAgainst())
		}
	}
	open := &agboxv1.AdvanceBaseOpen{SandboxId: "s", LostCommits: base.BranchCommits}
	if rules.Validate(open) == nil {
		t.Errorf("more than %d lost commits may be named", maxLost)
	}
	if open.LostCommits = open.LostCommits[:maxLost]; rules.Validate(open) != nil {
		t.Error(rules.Validate(open))
	}
}

// Commits count as brought only if the files of the call came.
func TestAPullThatWouldMergeBringsNoCommits(t *testing.T) {
	w := &Work{tip: "b", brought: "a"}
	would := AppliedWork{Committed: edits.Committed{Outcomes: []WorkOutcome{{Kind: edits.Written}, {Kind: edits.Merged}}}}
	if w.allCame(ApplyOptions{NoMerge: true}, would) {
		t.Error("nothing was brought, and the commits count as such")
	}
	if !w.allCame(ApplyOptions{}, would) || !w.allCame(ApplyOptions{NoMerge: true}, AppliedWork{Committed: edits.Committed{Outcomes: would.Outcomes[:1]}}) {
		t.Error("all was brought, and the commits do not count as such")
	}
}

// A file that a branch lost, because git did not track it, is a new one in what a person sees. A branch
// may have either version.
func TestAFileThatGitTracksAgainIsNewAndHasItsVersionBefore(t *testing.T) {
	file := &agboxv1.WorkspaceFile{Size: 1, Sha256: []byte("1")}
	again := difference("f", file, file)
	again.GetDifference().Retracked = true
	had := baseFile("f")
	had.GetBaseFile().Untracked = true
	c, _ := comparing(t, func(*agboxv1.CompareWorkspaceRequest) []*agboxv1.CompareWorkspaceResponse {
		return []*agboxv1.CompareWorkspaceResponse{had, baseFile("g"), again}
	})
	for what, get := range map[string]func() (*Work, error){
		"new": func() (*Work, error) { return c.Work(t.Context(), "s", WorkOptions{NamesOnly: true}) },
		"had": func() (*Work, error) { return c.compare(t.Context(), "s", WorkOptions{NamesOnly: true}, true) },
	} {
		w, err := get()
		if err != nil || len(w.Changes) != 1 || len(w.lostFiles) != 1 || !w.lostFiles["f"] || !w.Changes[0].Retracked || w.Changes[0].After == nil || (w.Changes[0].Before == nil) != (what == "new") {
			t.Errorf("%s: %v: %+v", what, err, w)
		}
	}
}

// What branches lost, because git does not track it, is said in requests of a bounded size.
func TestARequestNamesABoundedNumberOfUntrackedFiles(t *testing.T) {
	open := &agboxv1.AdvanceBaseOpen{SandboxId: "s"}
	for range maxUntracked + 1 {
		open.Untracked = append(open.Untracked, bytes.Repeat([]byte("f"), 4095))
	}
	rules := protovalidate.GlobalValidator
	if rules.Validate(open) == nil {
		t.Errorf("more than %d untracked files may be named", maxUntracked)
	}
	if open.Untracked = open.Untracked[:maxUntracked]; rules.Validate(open) != nil || proto.Size(open) > 4<<20 {
		t.Errorf("%v, with %d bytes", rules.Validate(open), proto.Size(open))
	}
}

// TestApplySaysToWhichCommitsBranchesHaveMoved, also to those of calls that were killed before they
// said so: until then the daemon takes it for work that was not brought.
func TestApplySaysToWhichCommitsBranchesHaveMoved(t *testing.T) {
	var got *agboxv1.AdvanceBaseOpen
	c, _ := serveFiles(t, &fileScript{advance: func(in grpc.ClientStreamingServer[agboxv1.AdvanceBaseRequest, agboxv1.AdvanceBaseResponse]) error {
		m, err := in.Recv()
		if err != nil {
			return err
		}
		got = m.GetOpen()
		return in.SendAndClose(&agboxv1.AdvanceBaseResponse{})
	}})
	refused := []WorkOutcome{{Kind: edits.Refused}}
	for name, row := range map[string]struct {
		o     ApplyOptions
		done  AppliedWork
		moved string
	}{
		"a branch":     {ApplyOptions{Branch: "b"}, AppliedWork{Committed: edits.Committed{Has: "new"}}, "there new"},
		"no news":      {ApplyOptions{Branch: "b"}, AppliedWork{}, "there"},
		"a conflict":   {ApplyOptions{Branch: "b"}, AppliedWork{Committed: edits.Committed{Has: "new", Outcomes: refused}}, "there"},
		"a check":      {ApplyOptions{Branch: "b", Check: true}, AppliedWork{Committed: edits.Committed{Has: "new"}}, ""},
		"the folder":   {ApplyOptions{}, AppliedWork{}, ""},
		"some of it":   {ApplyOptions{Branch: "b", Paths: []string{"a"}}, AppliedWork{Committed: edits.Committed{Has: "new"}}, "there new"},
		"a large file": {ApplyOptions{Branch: "b"}, AppliedWork{Committed: edits.Committed{Has: "new"}, Large: []WorkChange{{}}}, "there new"},
	} {
		got = nil
		w := &Work{branchCommits: []string{"gone", "since", "there"}, named: []string{"there"}, lost: []string{"gone"}}
		if err := c.noteHome(t.Context(), "s", w, row.o, row.done); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if moved := strings.Join(got.GetMovedCommits(), " "); moved != row.moved || (got == nil) != (row.moved == "") {
			t.Errorf("%s: %v; want %q", name, got, row.moved)
		}
	}
}

// TestACommitThatNobodyLookedForHasNotMoved: another client may have noted it while this one compared
// again, and be killed before it moves the branch.
func TestACommitThatNobodyLookedForHasNotMoved(t *testing.T) {
	t.Setenv("AGBOX_HOME", t.TempDir())
	t.Setenv("GIT_CONFIG_GLOBAL", "/dev/null")
	source := t.TempDir()
	git := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-C", source, "-c", "user.name=Ann", "-c", "user.email=ann@example.org"}, args...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "there")
	there, gone, since := git("rev-parse", "HEAD"), strings.Repeat("1", 40), strings.Repeat("2", 40)
	base := &agboxv1.WorkspaceBase{Source: source, BranchCommits: []string{gone, there}}
	c, _ := serveFiles(t, &fileScript{compare: func(in *agboxv1.CompareWorkspaceRequest, out grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error {
		if len(in.GetLostCommits()) > 0 {
			base.BranchCommits = []string{gone, since, there}
		}
		return out.Send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Base{Base: base}})
	}})
	w, err := c.Work(t.Context(), "s", WorkOptions{NamesOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if len(w.branchCommits) != 3 || !slices.Equal(w.named, []string{there}) || !slices.Equal(w.lost, []string{gone}) {
		t.Errorf("of %q a reference names %q, and none %q", w.branchCommits, w.named, w.lost)
	}
}

// A person copies the command.
func TestTheCommandThatLinksAMovedFolderIsQuoted(t *testing.T) {
	for source, word := range map[string]string{"/not/there": "/not/there", "/not/Ann's $(new) project": `'/not/Ann'\''s $(new) project'`} {
		err := (&Work{Source: source}).folderThere(t.Context())
		if want := "`ln -s NEWPLACE " + word + "`"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", source, err, want)
		}
	}
}
