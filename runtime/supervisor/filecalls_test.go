package supervisor_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest"
	"github.com/agbox/agbox/runtime/guest/wire"
)

// desk is a supervisor and a folder for its file calls.
type desk struct {
	*box
	conn *guest.Conn
	root string
}

func newDesk(t testing.TB) *desk {
	b := newBox(t)
	root := filepath.Join(b.dir, "files")
	b.must(os.Mkdir(root, 0o755))
	return &desk{box: b, conn: b.dial(), root: root}
}

func (d *desk) path(name string) string { return filepath.Join(d.root, name) }

func (d *desk) put(name, content string) {
	d.t.Helper()
	d.must(os.WriteFile(d.path(name), []byte(content), 0o644))
}

func (d *desk) call(op guest.FileOp, req *guestv1.FileRequest) (*guestv1.FileReply, error) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), limit)
	defer cancel()
	return d.conn.File(ctx, op, req)
}

// transfer begins a transfer that ends with the test.
func (d *desk) transfer(req *guestv1.TransferRequest) (*guest.Transfer, error) {
	d.t.Helper()
	tr, err := guest.DialTransfer(d.t.Context(), filepath.Join(d.dir, "link"), req)
	if err == nil {
		d.t.Cleanup(tr.Close)
	}
	return tr, err
}

func (d *desk) begin(req *guestv1.TransferRequest) *guest.Transfer {
	d.t.Helper()
	tr, err := d.transfer(req)
	d.must(err)
	return tr
}

func write(path string) *guestv1.TransferRequest {
	return &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Write{Write: &guestv1.WriteTransfer{Path: []byte(path)}}}
}

func read(path string, offset, length uint64) *guestv1.TransferRequest {
	return &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Read{Read: &guestv1.ReadTransfer{Path: []byte(path), Offset: offset, Length: length}}}
}

func into(path string) *guestv1.TransferRequest {
	return &guestv1.TransferRequest{Kind: &guestv1.TransferRequest_In{In: &guestv1.InTransfer{Path: []byte(path)}}}
}

// all reads a transfer to its end.
func all(tr *guest.Transfer) (string, error) {
	var b bytes.Buffer
	for {
		chunk, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return b.String(), nil
		}
		if err != nil {
			return b.String(), err
		}
		b.Write(chunk)
	}
}

func wantReason(t *testing.T, what string, err error, want agboxv1.ErrorReason) {
	t.Helper()
	if got := fault.ReasonOf(err); err == nil || got != want {
		t.Errorf("%s: %v (%v), want %v", what, err, got, want)
		return
	}
	if text := err.Error(); !strings.HasSuffix(text, ".") || strings.ToUpper(text[:1]) != text[:1] {
		t.Errorf("%s: %q is no sentence", what, text)
	}
}

func TestFilesAreReadFromAnyPlace(t *testing.T) {
	d := newDesk(t)
	content := strings.Repeat("0123456789", 100_000) // several chunks
	d.put("f", content)
	for _, c := range []struct{ offset, length uint64 }{{0, 0}, {7, 0}, {0, 5}, {999_999, 10}, {2_000_000, 0}, {300_000, 262_144}} {
		got, err := all(d.begin(read(d.path("f"), c.offset, c.length)))
		from := min(c.offset, uint64(len(content)))
		to := uint64(len(content))
		if c.length > 0 {
			to = min(from+c.length, to)
		}
		if err != nil || got != content[from:to] {
			t.Errorf("from %d, %d bytes: got %d bytes, %v", c.offset, c.length, len(got), err)
		}
	}
	// A file without a size, whose content is made when it is read.
	if got, err := all(d.begin(read("/proc/self/status", 0, 0))); err != nil || !strings.Contains(got, "Name:") {
		t.Errorf("/proc: %q, %v", got, err)
	}
}

func TestWhatIsNoRegularFileIsNotRead(t *testing.T) {
	d := newDesk(t)
	d.must(syscall.Mkfifo(d.path("fifo"), 0o600)) // nobody writes to it: opening it must not wait
	for path, want := range map[string]agboxv1.ErrorReason{
		d.path("fifo"): agboxv1.ErrorReason_FILE_NOT_REGULAR,
		d.root:         agboxv1.ErrorReason_IS_A_DIRECTORY,
		d.path("no"):   agboxv1.ErrorReason_FILE_NOT_FOUND,
		"/dev/zero":    agboxv1.ErrorReason_FILE_NOT_REGULAR,
		"relative":     agboxv1.ErrorReason_INVALID_REQUEST,
		"/a\x00b":      agboxv1.ErrorReason_INVALID_REQUEST,
		// The way out through the supervisor's own descriptors.
		"/proc/self/fd/3":        agboxv1.ErrorReason_FILE_FAILED,
		"/proc/self/root/passwd": agboxv1.ErrorReason_FILE_FAILED,
	} {
		_, err := d.transfer(read(path, 0, 0))
		wantReason(t, path, err, want)
	}
}

func TestAWriteIsSeenWholeOrNotAtAll(t *testing.T) {
	d := newDesk(t)
	d.put("f", "old")
	d.must(os.Chmod(d.path("f"), 0o751))
	tr := d.begin(write(d.path("f")))
	d.must(tr.Push(bytes.Repeat([]byte("x"), 1<<20)))
	if got := d.file("files/f"); got != "old" {
		t.Errorf("before the end it holds %d bytes", len(got))
	}
	end, err := tr.Finish()
	d.must(err)
	st, err := os.Stat(d.path("f"))
	d.must(err)
	if st.Size() != 1<<20 || st.Mode().Perm() != 0o751 || end.GetFile().GetSize() != 1<<20 {
		t.Errorf("it has %d bytes, mode %v; told %v", st.Size(), st.Mode(), end.GetFile())
	}
	d.wantOnly("f")
}

// wantOnly checks what is in the folder.
func (d *desk) wantOnly(names ...string) {
	d.t.Helper()
	eventually(d.t, "only "+strings.Join(names, ", ")+" is there", func() bool {
		list, err := os.ReadDir(d.root)
		d.must(err)
		var have []string
		for _, e := range list {
			have = append(have, e.Name())
		}
		return strings.Join(have, " ") == strings.Join(names, " ")
	})
}

func TestAWriteThatBreaksOffLeavesNothing(t *testing.T) {
	d := newDesk(t)
	d.put("f", "old")
	tr := d.begin(write(d.path("f")))
	d.must(tr.Push([]byte("half")))
	eventually(t, "it is being written", func() bool {
		list, _ := os.ReadDir(d.root)
		return len(list) == 2
	})
	tr.Close()
	d.wantOnly("f")
	if got := d.file("files/f"); got != "old" {
		t.Errorf("it holds %q", got)
	}
}

func TestAWriteFollowsALinkAndKeepsIt(t *testing.T) {
	d := newDesk(t)
	d.put("f", "old")
	d.must(os.Symlink("f", d.path("l")))
	tr := d.begin(write(d.path("l")))
	d.must(tr.Push([]byte("new")))
	_, err := tr.Finish()
	d.must(err)
	if to, err := os.Readlink(d.path("l")); to != "f" || d.file("files/f") != "new" {
		t.Errorf("the link is %q, %v; the file holds %q", to, err, d.file("files/f"))
	}
}

func TestAWriteMakesWhatALinkLeadsToWhereThatIsMissing(t *testing.T) {
	d := newDesk(t)
	d.must(errors.Join(os.Mkdir(d.path("dir"), 0o755), os.Symlink("dir/second", d.path("first")),
		os.Symlink("../made", d.path("dir/second")), os.Symlink("loop", d.path("loop")), os.Symlink("missing/f", d.path("lost"))))
	tr := d.begin(write(d.path("first")))
	d.must(tr.Push([]byte("new")))
	_, err := tr.Finish()
	d.must(err)
	if to, err := os.Readlink(d.path("first")); to != "dir/second" || d.file("files/made") != "new" {
		t.Errorf("the link is %q, %v; the file holds %q", to, err, d.file("files/made"))
	}
	_, err = d.transfer(write(d.path("lost")))
	wantReason(t, "into a missing directory", err, agboxv1.ErrorReason_FILE_NOT_FOUND)
	if _, err = d.transfer(write(d.path("loop"))); err == nil {
		t.Error("a link to itself was replaced")
	}
	createOnly := write(d.path("lost"))
	createOnly.GetWrite().CreateOnly, createOnly.GetWrite().Path = true, []byte(d.path("dangling"))
	d.must(os.Symlink("nothing", d.path("dangling")))
	tr = d.begin(createOnly)
	_, err = tr.Finish()
	wantReason(t, "over a link", err, agboxv1.ErrorReason_FILE_EXISTS)
}

func TestCreateOnlyReplacesNothing(t *testing.T) {
	d := newDesk(t)
	d.put("f", "old")
	req := write(d.path("f"))
	req.GetWrite().CreateOnly = true
	_, err := d.transfer(req)
	wantReason(t, "at once", err, agboxv1.ErrorReason_FILE_EXISTS)
	req = write(d.path("new/f"))
	req.GetWrite().CreateOnly, req.GetWrite().Parents = true, true
	tr := d.begin(req)
	d.put("new/f", "somebody was faster")
	_, err = tr.Finish()
	wantReason(t, "at the end", err, agboxv1.ErrorReason_FILE_EXISTS)
	if got := d.file("files/new/f"); got != "somebody was faster" {
		t.Errorf("it holds %q", got)
	}
}

func TestSmallFileCalls(t *testing.T) {
	d := newDesk(t)
	p := func(name string) []byte { return []byte(d.path(name)) }
	for _, c := range []struct {
		what string
		op   guest.FileOp
		req  *guestv1.FileRequest
		want agboxv1.ErrorReason
	}{
		{"make", guest.MakeDirectory, &guestv1.FileRequest{Path: p("d")}, 0},
		{"make again", guest.MakeDirectory, &guestv1.FileRequest{Path: p("d")}, agboxv1.ErrorReason_FILE_EXISTS},
		{"make without parents", guest.MakeDirectory, &guestv1.FileRequest{Path: p("x/y")}, agboxv1.ErrorReason_FILE_NOT_FOUND},
		{"make with parents", guest.MakeDirectory, &guestv1.FileRequest{Path: p("x/y/z"), Deep: true}, 0},
		{"make with parents again", guest.MakeDirectory, &guestv1.FileRequest{Path: p("x/y/z"), Deep: true}, 0},
		{"remove what is not empty", guest.RemoveFile, &guestv1.FileRequest{Path: p("x")}, agboxv1.ErrorReason_DIRECTORY_NOT_EMPTY},
		{"move", guest.MoveFile, &guestv1.FileRequest{Path: p("d"), NewPath: p("e")}, 0},
		{"move onto something", guest.MoveFile, &guestv1.FileRequest{Path: p("e"), NewPath: p("x"), NoReplace: true}, agboxv1.ErrorReason_FILE_EXISTS},
		{"move into itself", guest.MoveFile, &guestv1.FileRequest{Path: p("x"), NewPath: p("x/y/q")}, agboxv1.ErrorReason_INVALID_REQUEST},
		{"remove all", guest.RemoveFile, &guestv1.FileRequest{Path: p("x"), Deep: true}, 0},
		{"remove all again", guest.RemoveFile, &guestv1.FileRequest{Path: p("x"), Deep: true}, agboxv1.ErrorReason_FILE_NOT_FOUND},
		{"remove a directory", guest.RemoveFile, &guestv1.FileRequest{Path: p("e")}, 0},
		{"remove the root", guest.RemoveFile, &guestv1.FileRequest{Path: []byte("/"), Deep: true}, agboxv1.ErrorReason_INVALID_REQUEST},
		{"remove by dots", guest.RemoveFile, &guestv1.FileRequest{Path: []byte(d.root + "/.."), Deep: true}, agboxv1.ErrorReason_INVALID_REQUEST},
		{"unknown user", guest.StatFile, &guestv1.FileRequest{Path: p("."), User: "nobody-knows"}, agboxv1.ErrorReason_USER_NOT_FOUND},
	} {
		_, err := d.call(c.op, c.req)
		if c.want == 0 && err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		if c.want != 0 {
			wantReason(t, c.what, err, c.want)
		}
	}
	d.wantOnly()
}

func TestRemovingATreeDoesNotFollowLinks(t *testing.T) {
	d := newDesk(t)
	d.must(os.MkdirAll(d.path("tree/in"), 0o755))
	d.must(os.Mkdir(d.path("kept"), 0o755))
	d.put("kept/f", "kept")
	d.must(os.Symlink("../../kept", d.path("tree/in/l")))
	d.must(os.Symlink("kept", d.path("top")))
	for _, name := range []string{"tree", "top"} {
		_, err := d.call(guest.RemoveFile, &guestv1.FileRequest{Path: []byte(d.path(name)), Deep: true})
		d.must(err)
	}
	if d.file("files/kept/f") != "kept" {
		t.Error("it is gone")
	}
	d.wantOnly("kept")
}

func TestARemovalGoesOnPastWhatItMayNotRemove(t *testing.T) {
	d := newDesk(t)
	for _, dir := range []string{"tree", "tree/a", "tree/locked", "tree/z"} {
		d.must(os.Mkdir(d.path(dir), 0o755))
		d.put(dir+"/f", "")
		if os.Geteuid() == 0 && dir != "tree/locked" {
			d.must(os.Chown(d.path(dir), 4711, 4712))
		}
	}
	d.must(os.Chmod(d.root, 0o777))
	req := &guestv1.FileRequest{Path: []byte(d.path("tree")), Deep: true}
	if os.Geteuid() == 0 {
		req.User = "worker"
	} else {
		d.must(os.Chmod(d.path("tree/locked"), 0o555))
		t.Cleanup(func() { _ = os.Chmod(d.path("tree/locked"), 0o755) })
	}
	_, err := d.call(guest.RemoveFile, req)
	wantReason(t, "a locked directory", err, agboxv1.ErrorReason_FILE_PERMISSION)
	left, err := os.ReadDir(d.path("tree"))
	d.must(err)
	if len(left) != 1 || d.file("files/tree/locked/f") != "" {
		t.Errorf("%v are left", left)
	}
}

func TestADirectoryIsListedWholeInSmallPages(t *testing.T) {
	d := newDesk(t)
	const many = 2500
	want := make(map[string]bool)
	for i := range many {
		name := fmt.Sprintf("%04d %s", i, strings.Repeat("n", i%200))
		want[name] = true
		d.put(name, "")
	}
	d.must(os.Symlink("to where", d.path("link")))
	want["link"] = true
	for cursor, pages := uint64(0), 0; ; pages++ {
		reply, err := d.call(guest.ListFiles, &guestv1.FileRequest{Path: []byte(d.root), Cursor: cursor, Limit: 300})
		d.must(err)
		for _, st := range reply.GetFiles() {
			if !want[string(st.GetName())] {
				t.Errorf("%q comes twice, or is not there", st.GetName())
			}
			delete(want, string(st.GetName()))
			if string(st.GetName()) == "link" && string(st.GetLinkTarget()) != "to where" {
				t.Errorf("the link points to %q", st.GetLinkTarget())
			}
		}
		if cursor = reply.GetCursor(); reply.GetEnd() {
			if len(want) > 0 || pages < many/300 {
				t.Errorf("%d were not listed, %d pages", len(want), pages)
			}
			return
		}
	}
}

func TestFilesAreTouchedWithTheRightsOfTheUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root can act for others; here only that this is refused is tested")
		d := newDesk(t)
		_, err := d.call(guest.StatFile, &guestv1.FileRequest{Path: []byte(d.root), User: "worker"})
		wantReason(t, "another user", err, agboxv1.ErrorReason_FILE_PERMISSION)
		return
	}
	d := newDesk(t)
	d.must(os.Mkdir(d.path("private"), 0o700))
	d.put("private/f", "secret")
	d.must(os.Mkdir(d.path("team"), 0o770))
	d.must(os.Chmod(d.path("team"), 0o770))   // against the umask
	d.must(os.Chown(d.path("team"), 0, 4713)) // an extra group of worker
	d.put("read-only", "old")
	d.must(os.Chmod(d.root, 0o777))

	for range 3 { // on whatever threads
		_, err := d.call(guest.StatFile, &guestv1.FileRequest{Path: []byte(d.path("private/f")), User: "worker"})
		wantReason(t, "stat", err, agboxv1.ErrorReason_FILE_PERMISSION)
		req := read(d.path("private/f"), 0, 0)
		req.User = "worker"
		_, err = d.transfer(req)
		wantReason(t, "read", err, agboxv1.ErrorReason_FILE_PERMISSION)
		req = write(d.path("read-only"))
		req.User = "worker"
		_, err = d.transfer(req)
		wantReason(t, "write", err, agboxv1.ErrorReason_FILE_PERMISSION)
		// And root is root again after it.
		if got, err := all(d.begin(read(d.path("private/f"), 0, 0))); got != "secret" {
			t.Errorf("root reads %q, %v", got, err)
		}
	}
	req := into(d.path("team"))
	req.User = "worker"
	tr := d.begin(req)
	d.must(tr.Push(tarball(t, &tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o750, Uid: 0}, &tar.Header{Name: "d/f", Mode: 0o4755, Uid: 0})))
	_, err := tr.Finish()
	d.must(err)
	for _, name := range []string{"team/d", "team/d/f"} {
		st, err := os.Stat(d.path(name))
		d.must(err)
		if sys := st.Sys().(*syscall.Stat_t); sys.Uid != 4711 || sys.Gid != 4712 {
			t.Errorf("%s belongs to %d:%d", name, sys.Uid, sys.Gid)
		}
	}
}

func tarball(t testing.TB, entries ...*tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAHostileArchiveIsRefusedWhileItIsSent(t *testing.T) {
	d := newDesk(t)
	d.must(os.Mkdir(d.path("target"), 0o755))
	tr := d.begin(into(d.path("target")))
	err := tr.Push(tarball(t, &tar.Header{Name: "../x", Mode: 0o644}))
	for i := 0; err == nil && i < 1000; i++ { // an endless sender hears of it too
		err = tr.Push(make([]byte, 64<<10))
	}
	wantReason(t, "dots", err, agboxv1.ErrorReason_ARCHIVE_REFUSED)
	d.wantOnly("target")
}

func TestChangesAreWatchedBelowADirectory(t *testing.T) {
	d := newDesk(t)
	d.must(os.MkdirAll(d.path("a/b"), 0o755))
	tr := d.begin(&guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Watch{Watch: &guestv1.WatchTransfer{Path: []byte(d.root), Recursive: true}}})
	wait := func(kind guestv1.ChangeKind, name string) *guestv1.Change {
		t.Helper()
		for {
			batch, err := tr.NextChanges()
			d.must(err)
			for _, c := range batch.GetChanges() {
				if strings.Contains(string(c.GetPath()), ".agbox-") {
					t.Errorf("it tells of %s", c.GetPath())
				}
				if c.GetKind() == kind && string(c.GetPath()) == d.path(name) {
					return c
				}
			}
		}
	}
	d.put("a/b/f", "x")
	wait(guestv1.ChangeKind_CHANGE_KIND_WRITTEN, "a/b/f")
	d.must(os.MkdirAll(d.path("new/deep"), 0o755))
	wait(guestv1.ChangeKind_CHANGE_KIND_CREATED, "new/deep")
	d.put("new/deep/f", "x")
	wait(guestv1.ChangeKind_CHANGE_KIND_CREATED, "new/deep/f")
	d.must(os.Rename(d.path("new"), d.path("moved")))
	wait(guestv1.ChangeKind_CHANGE_KIND_MOVED_IN, "moved")
	d.must(os.Remove(d.path("moved/deep/f")))
	wait(guestv1.ChangeKind_CHANGE_KIND_REMOVED, "moved/deep/f")
	w := d.begin(write(d.path("a/written")))
	_, err := w.Finish()
	d.must(err)
	wait(guestv1.ChangeKind_CHANGE_KIND_WRITTEN, "a/written")
	d.must(os.RemoveAll(d.root))
	wait(guestv1.ChangeKind_CHANGE_KIND_REMOVED, "")
	if batch, err := tr.NextChanges(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v, %v", batch, err)
	}
}

func TestADeepTreeIsWatchedToItsEndWithFewDescriptors(t *testing.T) {
	d := newDesk(t)
	deep := strings.Repeat("d/", 300)
	d.must(os.MkdirAll(d.path(deep), 0o755))
	few := unix.Rlimit{Cur: 100, Max: 100}
	d.must(unix.Prlimit(d.cmd.Process.Pid, unix.RLIMIT_NOFILE, &few, nil))
	tr := d.begin(&guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Watch{Watch: &guestv1.WatchTransfer{Path: []byte(d.root), Recursive: true}}})
	d.must(os.Mkdir(d.path(deep+"new"), 0o755))
	d.must(os.Mkdir(d.path("last"), 0o755))
	batch, err := tr.NextChanges()
	d.must(err)
	if got := batch.GetChanges(); len(got) == 0 || string(got[0].GetPath()) != d.path(deep+"new") || batch.GetOverflow() != "" {
		t.Errorf("it tells %.200v", batch)
	}
}

func TestMoreChangesThanFitAreSaidToBeLost(t *testing.T) {
	d := newDesk(t)
	tr := d.begin(&guestv1.TransferRequest{Kind: &guestv1.TransferRequest_Watch{Watch: &guestv1.WatchTransfer{Path: []byte(d.root)}}})
	for i := range 25_000 {
		d.must(os.Mkdir(d.path(fmt.Sprint(i%2)), 0o755))
		d.must(os.Remove(d.path(fmt.Sprint(i % 2))))
	}
	for {
		batch, err := tr.NextChanges()
		d.must(err)
		if batch.GetOverflow() != "" {
			return
		}
	}
}

func TestTransfersAreBoundedAndComeBack(t *testing.T) {
	d := newDesk(t)
	d.put("f", strings.Repeat("x", 4<<20)) // more than waits in sockets
	var open []*guest.Transfer
	for {
		tr, err := d.transfer(read(d.path("f"), 0, 0))
		if err != nil {
			wantReason(t, "one too many", err, agboxv1.ErrorReason_OVERLOADED)
			break
		}
		if open = append(open, tr); len(open) > 100 {
			t.Fatal("there is no bound")
		}
	}
	// Small calls and commands are not held up by readers that do not read.
	if _, err := d.call(guest.StatFile, &guestv1.FileRequest{Path: []byte(d.root)}); err != nil {
		t.Error(err)
	}
	if r := d.run(sh("meanwhile", "exit 3")); r.GetExitCode() != 3 {
		t.Errorf("a command ended with %v", r)
	}
	for _, tr := range open {
		tr.Close()
	}
	eventually(t, "there is room again", func() bool {
		tr, err := d.transfer(read(d.path("f"), 0, 10))
		if err != nil {
			return false
		}
		tr.Close()
		return true
	})
}

func TestASupervisorThatStopsDoesNotWaitForTransfers(t *testing.T) {
	d := newDesk(t)
	var open []*guest.Transfer
	for i := range 20 { // so many that one of them would be late
		tr := d.begin(write(d.path(fmt.Sprint("f", i))))
		d.must(tr.Push([]byte("half")))
		open = append(open, tr)
	}
	began := time.Now()
	d.stop()
	if took := time.Since(began); took > limit/2 {
		t.Errorf("it took %v", took)
	}
	for _, tr := range open {
		if _, err := tr.Finish(); !errdefs.IsUnavailable(err) {
			t.Errorf("the transfer ended with %v", err)
		}
	}
	// Nobody is left who could remove it later.
	list, err := os.ReadDir(d.root)
	d.must(err)
	if len(list) > 0 {
		t.Errorf("%d half-written files are left", len(list))
	}
}

func TestRubbishInAPreambleEndsItsConnectionAlone(t *testing.T) {
	d := newDesk(t)
	for _, rubbish := range []string{"A", "AGBXFILX\x00\x00\x00\x00", wire.Preamble + "\xff\xff\xff\xff", wire.Preamble + "\x00\x00\x00\x02\xff\xff", wire.Preamble + "\x00\x00\x00\x00"} {
		c, err := net.Dial("unix", filepath.Join(d.dir, "link", "guest.sock"))
		d.must(err)
		d.must(c.SetDeadline(time.Now().Add(limit)))
		_, err = io.WriteString(c, rubbish)
		d.must(err)
		d.must(c.(*net.UnixConn).CloseWrite())
		if _, err := io.Copy(io.Discard, c); err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%q: %v", rubbish, err)
		}
		_ = c.Close()
	}
	if _, err := d.call(guest.StatFile, &guestv1.FileRequest{Path: []byte(d.root)}); err != nil {
		t.Error(err)
	}
}
