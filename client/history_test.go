package client

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/agbox/agbox/workspace/edits"
	"github.com/agbox/agbox/workspace/gitignore"
)

// comparing serves comparisons: sent says what is sent behind the first message.
func comparing(t *testing.T, sent func(in *agboxv1.CompareWorkspaceRequest) []*agboxv1.CompareWorkspaceResponse) (c *Client, asked *[]*agboxv1.CompareWorkspaceRequest) {
	t.Helper()
	t.Setenv("AGBOX_HOME", t.TempDir())
	asked = new([]*agboxv1.CompareWorkspaceRequest)
	c, _ = serveFiles(t, &fileScript{compare: func(in *agboxv1.CompareWorkspaceRequest, out grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error {
		*asked = append(*asked, in)
		err := out.Send(&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Base{Base: &agboxv1.WorkspaceBase{Source: "/", Target: "/workspace", Head: "first"}}})
		for _, m := range sent(in) {
			if err == nil {
				err = out.Send(m)
			}
		}
		if in.GetBaseOnly() { // as a daemon that does not know that, and compares
			<-out.Context().Done()
		}
		return err
	}})
	return c, asked
}

func baseFile(name string) *agboxv1.CompareWorkspaceResponse {
	return &agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_BaseFile{BaseFile: &agboxv1.AdvancedFile{Path: []byte(name), File: &agboxv1.WorkspaceFile{Size: 1}}}}
}

func difference(name string, before, after *agboxv1.WorkspaceFile) *agboxv1.CompareWorkspaceResponse {
	return &agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Difference{Difference: &agboxv1.WorkspaceDifference{Path: []byte(name), Before: before, After: after}}}
}

func TestFromWhereAWorkspaceWasCopiedTakesNoComparison(t *testing.T) {
	c, asked := comparing(t, func(*agboxv1.CompareWorkspaceRequest) []*agboxv1.CompareWorkspaceResponse { return nil })
	w, err := c.origin(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	if w.Source != "/" || w.Target != "/workspace" || w.head != "first" || len(*asked) != 1 || !(*asked)[0].GetBaseOnly() {
		t.Errorf("it is %+v, and was asked %v", w, *asked)
	}
}

// What the work does not show of the workspace is apart: the commits of the sandbox decide about it.
func TestAHistoryHasWhatWasCopiedAndWhatTheWorkDoesNotShow(t *testing.T) {
	one, two := &agboxv1.WorkspaceFile{Size: 1}, &agboxv1.WorkspaceFile{Size: 2}
	c, asked := comparing(t, func(in *agboxv1.CompareWorkspaceRequest) []*agboxv1.CompareWorkspaceResponse {
		switch in.GetAgainst() {
		case agboxv1.WorkBase_WORK_BASE_FIRST_COPY:
			return []*agboxv1.CompareWorkspaceResponse{
				baseFile("same"), baseFile("changed"), baseFile("brought"), baseFile("removed"), baseFile("back"),
				difference("brought", one, two), difference("changed", one, two), difference("dist/ignored", nil, two),
				difference("large", nil, &agboxv1.WorkspaceFile{Size: 3 << 30, TooLarge: true}), difference("new", nil, two), difference("removed", one, nil),
			}
		case agboxv1.WorkBase_WORK_BASE_FOLDER:
			return []*agboxv1.CompareWorkspaceResponse{baseFile("of the folder")}
		default:
			t.Errorf("asked %v", in)
			return nil
		}
	})
	// A branch has removed what is back, and has what was brought.
	w := &Work{fresh: map[string]bool{"back": false, "new": false}, shared: edits.Shared{Files: map[string]*edits.File{"same": {}, "changed": {}, "brought": {}}}, Changes: []WorkChange{{Path: "changed"}, {Path: "new"}}}
	h := new(edits.History)
	if err := c.copied(t.Context(), "s", w, h); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(h.Copy)); !slices.Equal(got, []string{"back", "brought", "changed", "removed", "same"}) || h.Copy["back"].Size != 1 {
		t.Errorf("%q were copied", got)
	}
	maps.DeleteFunc(h.Apart, func(_ string, apart bool) bool { return !apart })
	if got := slices.Sorted(maps.Keys(h.Apart)); !slices.Equal(got, []string{"back", "dist/ignored", "large"}) {
		t.Errorf("apart are %q", got)
	}
	if !maps.Equal(w.fresh, map[string]bool{"back": true, "new": false}) {
		t.Errorf("new files of names that were copied in are %v", w.fresh)
	}
	if in := (*asked)[0]; len(*asked) != 1 || !in.GetAll() || !in.GetNamesOnly() || !in.GetWithBase() {
		t.Errorf("asked %v", *asked)
	}
	home, err := h.Home()
	if err != nil || len(home) != 1 || home["of the folder"] == nil || !(*asked)[1].GetWithBase() {
		t.Errorf("the folder has %v, %v", home, err)
	}
}

// What git has stopped tracking in a sandbox is what the workspace has, also anew, and its index does not name.
func TestTheIndexSaysWhatGitDoesNotTrackInASandbox(t *testing.T) {
	index := func(names ...string) []byte {
		raw := binary.BigEndian.AppendUint32([]byte("DIRC\x00\x00\x00\x02"), uint32(len(names)))
		for _, name := range names {
			entry := make([]byte, 62)
			binary.BigEndian.PutUint32(entry[24:], 0o100644)
			entry = append(entry, name...)
			raw = append(raw, append(entry, make([]byte, 8-len(entry)%8)...)...)
		}
		return raw
	}
	const head = "1111111111111111111111111111111111111111"
	unread := []string{"an error that points to the folder"}
	for _, one := range []struct {
		what  string
		index []byte
		err   error
		want  []string
	}{
		{"an index", index("changed", "fresh", "same"), nil, []string{"loose", "stopped"}},
		{"an index that names nothing", index(), nil, []string{"changed", "fresh: new", "loose", "same", "stopped"}},
		{"no index", nil, reject(codes.NotFound, agboxv1.ErrorReason_FILE_NOT_FOUND, "none"), nil},
		{"no folder of git", nil, reject(codes.FailedPrecondition, agboxv1.ErrorReason_NOT_A_DIRECTORY, "none"), nil},
		{"a damaged one", index("changed", "same")[:90], nil, unread},
		{"a split one", append(index("same"), "link"...), nil, unread},
		{"a large one", make([]byte, maxIndex+16<<10), nil, unread},
		{"one that the daemon cannot read", nil, status.Error(codes.Internal, "broken"), unread},
	} {
		t.Run(one.what, func(t *testing.T) {
			c, _ := serveFiles(t, &fileScript{stat: isFile, out: func(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
				if in.GetPath() != "/workspace/.git/index" {
					t.Errorf("read %s", in.GetPath())
				}
				if one.err != nil {
					return one.err
				}
				return out.Send(&agboxv1.CopyOutResponse{Data: archiveOf(t, string(one.index))})
			}})
			w := &Work{Target: "/workspace", head: head, fresh: make(map[string]bool), shared: edits.Shared{Files: map[string]*edits.File{"same": {}, "changed": {}, "stopped": {}, "loose": {}, "gone": {}, "large": {}}}}
			w.Changes = []WorkChange{{Path: "changed", Before: &edits.File{}, After: &edits.File{Size: 1}}, {Path: "gone", Before: &edits.File{}}, {Path: "fresh", After: &edits.File{}}}
			w.Large = []WorkChange{{Path: "large", Before: &edits.File{}}}
			err := c.findUntracked(t.Context(), "s", w)
			names := slices.Collect(maps.Keys(w.untracked))
			for name := range w.fresh {
				names = append(names, name+": new")
			}
			slices.Sort(names)
			if err != nil && strings.Contains(err.Error(), "without --branch") {
				names, err = unread, nil
			}
			if err != nil || !slices.Equal(names, one.want) {
				t.Errorf("%q, %v", names, err)
			}
		})
	}
}

// A remedy is named only where it helps: e2e/attacks tries each.
func TestWhatHelpsAgainstAnIndexThatCannotBeRead(t *testing.T) {
	for _, one := range []struct {
		what, head string
		err        error
		want       string
	}{
		{"a split one", "", gitignore.ErrSplit, "`" + gitignore.RewriteIndex + "`"},
		{"a sparse one", "", gitignore.ErrSparse, "`" + gitignore.Remedy(gitignore.ErrSparse) + "`"},
		{"a damaged one", "", gitignore.ErrDamaged, "`" + gitignore.Remedy(gitignore.ErrDamaged) + "`"},
		{"long paths", "", gitignore.ErrPaths, ""},
		{"a large one of an older version", "DIRC\x00\x00\x00\x02", errTooLarge, "`" + gitignore.RewriteIndex + "`"},
		{"a large one of the newest version", "DIRC\x00\x00\x00\x04", errTooLarge, ""},
		{"another error", "", errReferences, ""},
	} {
		c, _ := serveFiles(t, &fileScript{read: func(_ *agboxv1.ReadFileRequest, out grpc.ServerStreamingServer[agboxv1.ReadFileResponse]) error {
			_ = out.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_File{File: &agboxv1.FileInfo{Size: 8}}})
			return out.Send(&agboxv1.ReadFileResponse{Item: &agboxv1.ReadFileResponse_Data{Data: []byte(one.head)}})
		}})
		text := c.unreadIndex(t.Context(), "s", &Work{Target: "/workspace"}, one.err).Error()
		_, names, _ := strings.Cut(text, "In /workspace of the sandbox, ")
		if remedy, _, _ := strings.Cut(names, " writes one that can be read. "); remedy != one.want || !strings.Contains(text, "`agbox apply` without --branch brings") {
			t.Errorf("%s: %s", one.what, text)
		}
	}
}

// Commits that were brought with all other work may have files that were left out of the copy.
func TestAnIndexThatDoesNotTellLeavesFilesOut(t *testing.T) {
	const tip = "1111111111111111111111111111111111111111"
	for _, one := range []struct {
		what, index string
		want        bool
	}{
		{"a whole one", "DIRC\x00\x00\x00\x02\x00\x00\x00\x00", false},
		{"a split one", "DIRC\x00\x00\x00\x02\x00\x00\x00\x00link", true},
		{"a damaged one", "DIRC", true},
	} {
		c, _ := serveFiles(t, &fileScript{stat: isFile, out: func(_ *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			return out.Send(&agboxv1.CopyOutResponse{Data: archiveOf(t, one.index)})
		}})
		w := &Work{Target: "/workspace", head: tip, shared: edits.Shared{Excludes: []string{"*.o"}}}
		if left, err := c.leftOut(t.Context(), "s", w, tip); left != one.want || err != nil {
			t.Errorf("%s: %t, %v", one.what, left, err)
		}
	}
}

// A file of the workspace is read for what git makes of it. If it is gone, nothing is.
func TestAHistoryReadsTheWorkspace(t *testing.T) {
	for _, one := range []struct {
		err  error
		want string
		ok   bool
	}{
		{nil, "text", true},
		{reject(codes.NotFound, agboxv1.ErrorReason_FILE_NOT_FOUND, "none"), "", true},
		{context.Canceled, "", false},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		c, _ := serveFiles(t, &fileScript{stat: isFile, out: func(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			if in.GetPath() != "/workspace/d/a" {
				t.Errorf("read %s", in.GetPath())
			}
			if !one.ok {
				cancel()
			}
			if one.err != nil {
				return one.err
			}
			return out.Send(&agboxv1.CopyOutResponse{Data: archiveOf(t, "text")})
		}})
		text, err := c.history(ctx, "s", &Work{Target: "/workspace"}).Read("d/a", 10)
		if string(text) != one.want || (err == nil) != one.ok {
			t.Errorf("%q, %v", text, err)
		}
		cancel()
	}
}

// The file .git of a workspace may name the repository, or a work tree of one.
func TestTheFileGitOfAWorkspaceIsFollowed(t *testing.T) {
	const head, made = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"
	for _, one := range []struct {
		what  string
		files map[string]string
		want  string
		git   gitFolders
		err   error
	}{
		{"a folder", map[string]string{"/w/.git/HEAD": made}, made, gitFolders{"/w/.git", "/w/.git"}, nil},
		{"none", nil, "", gitFolders{"/w/.git", "/w/.git"}, nil},
		{"a repository", map[string]string{"/w/.git": "gitdir: ../gd\n", "/gd/HEAD": "ref: refs/heads/x\n", "/gd/refs/heads/x": made}, made, gitFolders{"/gd", "/gd"}, nil},
		{"a work tree", map[string]string{"/w/.git": "gitdir: /r/worktrees/w\n", "/r/worktrees/w/commondir": "../..\n", "/r/worktrees/w/HEAD": "ref: refs/heads/x\n", "/r/packed-refs": made + " refs/heads/x\n"}, made, gitFolders{"/r/worktrees/w", "/r"}, nil},
		{"a file that names nothing", map[string]string{"/w/.git": "gitdir: /gone\n"}, "", gitFolders{"/gone", "/gone"}, nil},
		{"a file that git refuses", map[string]string{"/w/.git": "x"}, "", gitFolders{"/w/.git", "/w/.git"}, nil},
		{"too large for such a file", map[string]string{"/w/.git": strings.Repeat("x", 1<<20)}, "", gitFolders{"/w/.git", "/w/.git"}, errReferences},
	} {
		c, _ := serveFiles(t, &fileScript{stat: isFile, out: func(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			text, is := one.files[in.GetPath()]
			if !is {
				return reject(codes.FailedPrecondition, agboxv1.ErrorReason_NOT_A_DIRECTORY, "none")
			}
			return out.Send(&agboxv1.CopyOutResponse{Data: archiveOf(t, text)})
		}})
		w := &Work{Target: "/w", head: head, folders: gitFolders{"/before", "/before"}}
		if tip, err := c.tip(t.Context(), "s", w); tip != one.want || w.git() != one.git || !errors.Is(err, one.err) {
			t.Errorf("%s: %q in %v, %v", one.what, tip, w.git(), err)
		}
	}
}

// archiveOf is an archive of one file.
func archiveOf(t *testing.T, text string) []byte {
	t.Helper()
	var raw bytes.Buffer
	archive := tar.NewWriter(&raw)
	err := archive.WriteHeader(&tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(text))})
	if err == nil {
		_, err = archive.Write([]byte(text))
	}
	if err := errors.Join(err, archive.Close()); err != nil {
		t.Fatal(err)
	}
	return raw.Bytes()
}

// A daemon sends the files of a base one by one, or many at a time.
func TestTheFilesOfABaseComeInAnyParts(t *testing.T) {
	c, asked := comparing(t, func(*agboxv1.CompareWorkspaceRequest) []*agboxv1.CompareWorkspaceResponse {
		part := &agboxv1.AdvancedFiles{Files: []*agboxv1.AdvancedFile{baseFile("b").GetBaseFile(), baseFile("c").GetBaseFile()}}
		return []*agboxv1.CompareWorkspaceResponse{baseFile("a"), {Item: &agboxv1.CompareWorkspaceResponse_BaseFiles{BaseFiles: part}}}
	})
	w, err := c.compare(t.Context(), "s", WorkOptions{}, true)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if got := slices.Sorted(maps.Keys(w.shared.Files)); !slices.Equal(got, []string{"a", "b", "c"}) || w.shared.Files["c"].Size != 1 || !(*asked)[0].GetBaseInParts() {
		t.Errorf("the base has %q; asked %v", got, *asked)
	}
}

// Commits of the sandbox matter only where they or all work come, or count as such.
func TestOnlyACallThatBringsCommitsOrAllWorkAsksForThem(t *testing.T) {
	c, asked := comparing(t, func(*agboxv1.CompareWorkspaceRequest) []*agboxv1.CompareWorkspaceResponse { return nil })
	for name, o := range map[string]ApplyOptions{
		"a check": {Check: true}, "a part": {Paths: []string{"a"}}, "an abort": {Abort: true}, "a part of a continue": {Continue: true, Paths: []string{"a"}},
	} {
		*asked = nil
		w, _, err := c.workFor(t.Context(), "s", o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w.Close()
		if len(*asked) != 1 || (*asked)[0].GetBaseOnly() {
			t.Errorf("%s asks %v", name, *asked)
		}
	}
}

// A daemon says in one comparison what came home before and what git does not track. An older one is
// asked, and so is one that cannot read the index.
func TestABranchTakesOneComparisonOrThoseOfAnOlderDaemon(t *testing.T) {
	one, two := &agboxv1.WorkspaceFile{Size: 1}, &agboxv1.WorkspaceFile{Size: 2}
	for _, older := range []bool{false, true} {
		t.Setenv("AGBOX_HOME", t.TempDir())
		comparisons := 0
		c, _ := serveFiles(t, &fileScript{
			compare: func(in *agboxv1.CompareWorkspaceRequest, out grpc.ServerStreamingServer[agboxv1.CompareWorkspaceResponse]) error {
				all := []*agboxv1.CompareWorkspaceResponse{{Item: &agboxv1.CompareWorkspaceResponse_Base{Base: &agboxv1.WorkspaceBase{Source: "/", Target: "/workspace", Head: strings.Repeat("1", 40)}}}}
				if !in.GetBaseOnly() {
					comparisons++
				}
				switch {
				case in.GetAgainst() == agboxv1.WorkBase_WORK_BASE_FIRST_COPY:
					all = append(all, difference("home", one, two))
				case in.GetWithBase():
					all = append(all, &agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_BaseFile{BaseFile: &agboxv1.AdvancedFile{Path: []byte("home"), File: two}}}, baseFile("env"), difference("new", nil, one))
				}
				if !older && in.GetHome() {
					all = append(all, &agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Home{Home: difference("home", one, two).GetDifference()}})
				}
				if !older && in.GetIndex() {
					unnamed := []*agboxv1.AdvancedFile{{Path: []byte("env"), File: one}, {Path: []byte("gone"), File: one}}
					fresh := []*agboxv1.AdvancedFile{{Path: []byte("again"), File: one}, {Path: []byte("new")}}
					all = append(all, difference("gone", one, nil), difference("again", nil, one), difference("new", nil, one),
						&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Index{Index: &agboxv1.WorkspaceIndex{Unnamed: unnamed[:1]}}},
						&agboxv1.CompareWorkspaceResponse{Item: &agboxv1.CompareWorkspaceResponse_Index{Index: &agboxv1.WorkspaceIndex{Unnamed: unnamed[1:], Fresh: fresh, Complete: true}}})
				}
				for _, m := range all {
					if err := out.Send(m); err != nil {
						return err
					}
				}
				return nil
			},
			out: func(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
				if strings.HasSuffix(in.GetPath(), "/.git/index") { // it names home
					e := strings.Repeat("\x00", 24) + "\x00\x00\x81\xa4" + strings.Repeat("\x00", 32) + "\x00\x04home" + strings.Repeat("\x00", 6)
					return out.Send(&agboxv1.CopyOutResponse{Data: archiveOf(t, "DIRC\x00\x00\x00\x02\x00\x00\x00\x01"+e+strings.Repeat("\x00", 20))})
				}
				return reject(codes.NotFound, agboxv1.ErrorReason_FILE_NOT_FOUND, "none")
			},
			stat: isFile,
		})
		w, _, err := c.workFor(t.Context(), "s", ApplyOptions{Branch: "fix", Squash: true})
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		want, fresh := 1, map[string]bool{"again": true, "new": false}
		if older {
			want = 3
			fresh = map[string]bool{"new": false} // what was copied in is not known
		}
		if len(w.atHome) != 1 || w.atHome[0].Path != "home" || w.untracked["env"] == nil || len(w.untracked) != 1 || !maps.Equal(w.fresh, fresh) || comparisons != want {
			t.Errorf("older %v: %d comparisons, at home is %v, and untracked are %v and %v", older, comparisons, w.atHome, w.untracked, w.fresh)
		}
	}
}

// What came to the folder may have left it since: the folder follows HEAD.
func TestWhatWasBroughtToTheFolderIsNoNewCommitWhileHeadIsThere(t *testing.T) {
	const head, made = "1111111111111111111111111111111111111111", "2222222222222222222222222222222222222222"
	var refs bytes.Buffer
	archive := tar.NewWriter(&refs)
	err := archive.WriteHeader(&tar.Header{Name: "refs/heads/side", Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(made))})
	if err == nil {
		_, err = archive.Write([]byte(made))
	}
	if err := errors.Join(err, archive.Close()); err != nil {
		t.Fatal(err)
	}
	for _, one := range []struct {
		what, head, by string
		want           int
	}{
		{"HEAD is there", "ref: refs/heads/side", "", 0},
		{"HEAD has left it", head, "", 1},
		{"HEAD has left it, and a branch has it", head, made, 0},
	} {
		c, _ := serveFiles(t, &fileScript{stat: isFile, out: func(in *agboxv1.CopyOutRequest, out grpc.ServerStreamingServer[agboxv1.CopyOutResponse]) error {
			switch strings.TrimPrefix(in.GetPath(), "/workspace/.git/") {
			case "HEAD":
				return out.Send(&agboxv1.CopyOutResponse{Data: archiveOf(t, one.head)})
			case "refs/heads/side":
				return out.Send(&agboxv1.CopyOutResponse{Data: archiveOf(t, made)})
			case "refs":
				return out.Send(&agboxv1.CopyOutResponse{Data: refs.Bytes()})
			}
			return reject(codes.NotFound, agboxv1.ErrorReason_FILE_NOT_FOUND, "none")
		}})
		w := &Work{Source: t.TempDir(), Target: "/workspace", head: head, brought: made, broughtBy: one.by}
		if got, err := c.NewCommits(t.Context(), "s", w); err != nil || len(got) != one.want {
			t.Errorf("%s: %v, %v", one.what, got, err)
		}
	}
}

// One commit of all leaves out files that the sandbox may have committed.
func TestWorkThatABranchLeavesOutHasNotAllCome(t *testing.T) {
	for _, one := range []struct {
		done AppliedWork
		want bool
	}{
		{AppliedWork{}, true},
		{AppliedWork{Committed: edits.Committed{Outside: []string{"a"}}}, true},
		{AppliedWork{Committed: edits.Committed{Refused: []string{"a"}}}, false},
		{AppliedWork{Committed: edits.Committed{Unfit: []string{"a"}}}, false},
		{AppliedWork{Committed: edits.Committed{Submodules: []string{"a"}}}, false},
		{AppliedWork{Committed: edits.Committed{Unfit: []string{"a"}, HasTip: true}}, true},
	} {
		if got := (&Work{tip: "tip"}).allCame(ApplyOptions{Branch: "fix"}, one.done); got != one.want {
			t.Errorf("%+v: all came: %t", one.done, got)
		}
	}
}
