package e2e

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func mustBe(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// zoo makes a tree with everything that a copy keeps.
func zoo(t *testing.T, root string) {
	t.Helper()
	in := func(name string) string { return filepath.Join(root, name) }
	mustBe(t, os.MkdirAll(in("sub/empty"), 0o755))
	for name, content := range map[string]string{
		"plain": "plain", "none": "", "name with spaces": "x", "a line\nin a name": "x", "not utf-8 \xff": "x",
		"sub/large": strings.Repeat("0123456789abcdef", 100_000),
	} {
		mustBe(t, os.WriteFile(in(name), []byte(content), 0o640))
	}
	mustBe(t, os.Symlink("plain", in("link")))
	mustBe(t, os.Symlink("/etc/passwd", in("link away")))
	mustBe(t, os.Link(in("sub/large"), in("sub/large again")))
	mustBe(t, os.Chmod(in("none"), 0o751))
	mustBe(t, os.Chmod(in("sub"), 0o750))
	if os.Geteuid() == 0 {
		mustBe(t, os.Lchown(in("plain"), 1234, 567))
		mustBe(t, os.Lchown(in("sub"), 1234, 567))
	}
	at := time.Date(2001, 2, 3, 4, 5, 6, 789012345, time.UTC)
	for _, name := range []string{"plain", "sub/large", "sub/empty", "sub"} {
		mustBe(t, os.Chtimes(in(name), at, at))
	}
}

// portrait describes everything about a tree that a copy must keep.
func portrait(t *testing.T, root string) map[string]string {
	t.Helper()
	seen, first := make(map[string]string), make(map[uint64]string)
	mustBe(t, filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, p)
		sys := st.Sys().(*syscall.Stat_t)
		text := fmt.Sprint(st.Mode(), sys.Uid, ":", sys.Gid, " ", st.ModTime().UnixNano())
		switch {
		case st.Mode().IsRegular():
			raw, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d %.20q", len(raw), raw)
			if other, ok := first[sys.Ino]; ok {
				text += " = " + other
			} else if sys.Nlink > 1 {
				first[sys.Ino] = rel
			}
		case st.Mode()&fs.ModeSymlink != 0:
			to, _ := os.Readlink(p)
			text += " -> " + to
		}
		seen[rel] = text
		return nil
	}))
	return seen
}

func wantSameTree(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, was := range want {
		if got[name] != was {
			t.Errorf("%q was %s\nand is %s", name, was, got[name])
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files came back, %d were sent", len(got), len(want))
	}
}

func TestATreeGoesInAndComesOutAsItWas(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	work := t.TempDir()
	zoo(t, filepath.Join(work, "zoo"))
	want := portrait(t, filepath.Join(work, "zoo"))
	for box, image := range map[string]string{"full": harness.ImageBusybox, "bare": harness.ImageScratch} { // the latter has no tar and no shell
		in.Create(t, box, image)
		in.Must(t, "cp", filepath.Join(work, "zoo"), box+":/copy")
		in.Must(t, "cp", box+":/copy", filepath.Join(work, box))
		wantSameTree(t, portrait(t, filepath.Join(work, box)), want)
		// Into an existing directory, as contents, and out again as contents.
		in.Must(t, "cp", filepath.Join(work, "zoo")+"/.", box+":/copy")
		mustBe(t, os.Mkdir(filepath.Join(work, box+"2"), 0o755))
		in.Must(t, "cp", box+":/copy/.", filepath.Join(work, box+"2"))
		got := portrait(t, filepath.Join(work, box+"2"))
		got["."] = want["."] // an existing directory keeps its own
		wantSameTree(t, got, want)
	}
	in.Must(t, "cp", "full:/copy", "bare:/from full")
	in.Must(t, "cp", "bare:/from full", filepath.Join(work, "third"))
	got := portrait(t, filepath.Join(work, "third"))
	got["."] = want["."] // the second copy into it has changed its time
	wantSameTree(t, got, want)
}

func TestAWholeSandboxIsCopiedWithoutWhatTheKernelShows(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageBusybox)
	in.Must(t, "exec", "box", "--", "sh", "-c", "echo mine >/mine")
	out := filepath.Join(t.TempDir(), "all")
	in.Must(t, "cp", "box:/", out)
	raw, err := os.ReadFile(filepath.Join(out, "mine"))
	mustBe(t, err)
	for _, name := range []string{"proc", "sys"} {
		list, err := os.ReadDir(filepath.Join(out, name))
		if err != nil || len(list) > 0 || string(raw) != "mine\n" {
			t.Errorf("%s has %d files, %v; the sandbox's own holds %q", name, len(list), err, raw)
		}
	}
	// By their own names they can be copied.
	in.Must(t, "cp", "box:/proc/sys/kernel/ostype", out)
}

func TestCopiesGoWhereThoseOfCpGo(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageBusybox)
	work := t.TempDir()
	mustBe(t, os.WriteFile(filepath.Join(work, "f"), []byte("f"), 0o644))
	mustBe(t, os.WriteFile(filepath.Join(work, "g"), []byte("g"), 0o644))
	mustBe(t, os.MkdirAll(filepath.Join(work, "d"), 0o755))
	mustBe(t, os.Symlink("f", filepath.Join(work, "l")))
	f := filepath.Join(work, "f")
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{f, "box:/tmp/new"}, 0, ""},
		{[]string{f, "box:/tmp"}, 0, ""},
		{[]string{f, "box:tmp/relative"}, 0, ""},
		{[]string{f, filepath.Join(work, "g"), "box:/tmp/"}, 0, ""},
		{[]string{"-L", filepath.Join(work, "l"), "box:/tmp/followed"}, 0, ""},
		{[]string{"-a", "-q", f, "box:/tmp/a"}, 0, ""},
		{[]string{f, "box:/tmp/no/"}, 3, "does not exist"},
		{[]string{f, "box:/tmp/no/such"}, 3, "does not exist"},
		{[]string{filepath.Join(work, "d"), "box:/etc/passwd"}, 4, "is a file"},
		{[]string{f, filepath.Join(work, "g"), "box:/tmp/new"}, 2, "into an existing directory"},
		{[]string{filepath.Join(work, "no"), "box:/tmp"}, 3, "no such file"},
		{[]string{"box:/no", work}, 3, "does not exist"},
		{[]string{f, "nobox:/tmp"}, 3, "no sandbox"},
		{[]string{f, work}, 2, "write SANDBOX:PATH"},
		{[]string{f}, 2, "SRC and DST"},
		{[]string{"-u", "nobody", f, "box:/etc/new"}, 1, "has no permission"},
		{[]string{"-u", "no-such-user", f, "box:/tmp/new"}, 2, "no-such-user"},
	} {
		r := in.Agbox(t, append([]string{"cp"}, c.args...)...).Want(t, c.code)
		if r.Stdout != "" || c.code == 0 && r.Stderr != "" || !strings.Contains(r.Stderr, c.says) {
			t.Errorf("%v: stdout %q, stderr %q", c.args, r.Stdout, r.Stderr)
		}
	}
	in.Agbox(t, "exec", "box", "sh", "-c", "cd /tmp; cat new f relative g followed a; ls /etc/new").Want(t, 1).
		WantOutput(t, "fffgff", "ls: /etc/new: No such file or directory\n")
	in.Must(t, "cp", "-u", "nobody", f, "box:/tmp/owned")
	if got := in.Must(t, "exec", "box", "stat", "-c", "%U", "/tmp/owned"); got != "nobody" {
		t.Errorf("it belongs to %s", got)
	}
}

// piped runs agbox with a standard input.
func piped(t *testing.T, in *harness.Install, stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := in.Command(harness.Bounded(t), "agbox", args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestHostileArchivesAreRefusedByTheSandbox(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageBusybox)
	in.Must(t, "exec", "box", "mkdir", "/target")
	before := in.Must(t, "exec", "box", "sh", "-c", "cat /etc/passwd; ls /")
	for name, entries := range map[string][]*tar.Header{
		"dots":            {{Name: "../../etc/passwd", Size: 3}},
		"absolute":        {{Name: "/etc/passwd", Size: 3}},
		"symbolic link":   {{Name: "l", Linkname: "/etc", Typeflag: tar.TypeSymlink}, {Name: "l/passwd", Size: 3}},
		"relative link":   {{Name: "l", Linkname: "../etc", Typeflag: tar.TypeSymlink}, {Name: "l/passwd", Size: 3}},
		"hard link":       {{Name: "h", Linkname: "../etc/passwd", Typeflag: tar.TypeLink}, {Name: "h", Size: 3}},
		"absolute link":   {{Name: "h", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}},
		"to a later name": {{Name: "a", Linkname: "..", Typeflag: tar.TypeSymlink}, {Name: "a/", Typeflag: tar.TypeDir}, {Name: "a/etc/passwd", Size: 3}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			h.Mode = 0o777
			mustBe(t, w.WriteHeader(h))
			_, err := io.WriteString(w, "bad"[:h.Size])
			mustBe(t, err)
		}
		mustBe(t, w.Close())
		out, errs, code := piped(t, in, &b, "cp", "-", "box:/target")
		if code == 0 || out != "" || !strings.HasSuffix(errs, ".\n") {
			t.Errorf("%s: exit code %d, %q, %q", name, code, out, errs)
		}
		if after := in.Must(t, "exec", "box", "sh", "-c", "cat /etc/passwd; ls /"); after != before {
			t.Fatalf("%s: there is now\n%s", name, after)
		}
		in.Must(t, "exec", "box", "sh", "-c", "rm -rf /target; mkdir /target")
	}
}

func TestDevicesAndFIFOsStayOutUnlessAskedFor(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageBusybox)
	in.Must(t, "exec", "box", "sh", "-c", "mkdir /d; mkfifo /d/p; echo f >/d/f; chmod 4755 /d/f")
	to := t.TempDir()
	r := in.Agbox(t, "cp", "box:/d", to).Want(t, 0)
	if !strings.Contains(r.Stderr, "skipped") {
		t.Errorf("it says %q", r.Stderr)
	}
	if _, err := os.Lstat(filepath.Join(to, "d/p")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the FIFO: %v", err)
	}
	if st, err := os.Stat(filepath.Join(to, "d/f")); err != nil || st.Mode() != 0o755 {
		t.Errorf("a program of the sandbox keeps its setuid: %v, %v", st.Mode(), err)
	}
	in.Agbox(t, "cp", "--special", "box:/d", to).Want(t, 0)
	if st, err := os.Lstat(filepath.Join(to, "d/p")); err != nil || st.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("the FIFO that was asked for: %v", err)
	}
}

func TestArchivesGoThroughPipes(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageScratch)
	work := t.TempDir()
	zoo(t, filepath.Join(work, "zoo"))
	out, err := exec.Command("tar", "-C", work, "--format=gnu", "-c", "zoo").Output()
	mustBe(t, err)
	if _, errs, code := piped(t, in, bytes.NewReader(out), "cp", "-", "box:/"); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	raw, errs, code := piped(t, in, nil, "cp", "box:/zoo", "-")
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	back := t.TempDir()
	cmd := exec.Command("tar", "-C", back, "-x", "--same-owner")
	cmd.Stdin = strings.NewReader(raw)
	mustBe(t, cmd.Run())
	want, got := portrait(t, filepath.Join(work, "zoo")), portrait(t, filepath.Join(back, "zoo"))
	if len(got) != len(want) {
		t.Errorf("%d files came back, %d were sent", len(got), len(want))
	}
	if _, errs, code := piped(t, in, strings.NewReader("no archive at all, but long enough"), "cp", "-", "box:/"); code != 2 || !strings.Contains(errs, "archive") {
		t.Errorf("rubbish: exit code %d: %s", code, errs)
	}
	if _, errs, code := piped(t, in, bytes.NewReader(out), "cp", "-", "box:/no"); code != 3 {
		t.Errorf("to nowhere: exit code %d: %s", code, errs)
	}
	folder, err := os.Open(work)
	mustBe(t, err)
	defer folder.Close()
	if _, errs, code := piped(t, in, folder, "cp", "-", "box:/"); code == 0 || !strings.Contains(errs, "standard input cannot be read") {
		t.Errorf("from what cannot be read: exit code %d: %s", code, errs)
	}
}

func TestMuchIsCopiedInAndOut(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageBusybox)
	work := t.TempDir()
	big(t, filepath.Join(work, "big"), 1, 256<<20)
	many := filepath.Join(work, "many")
	for i := range 10_000 {
		dir := filepath.Join(many, fmt.Sprint(i/100))
		if i%100 == 0 {
			mustBe(t, os.MkdirAll(dir, 0o755))
		}
		mustBe(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), bytes.Repeat([]byte("x"), i%2000), 0o644))
	}
	for _, name := range []string{"big", "many"} {
		src, back := filepath.Join(work, name), filepath.Join(work, name+"-back")
		in.Must(t, "cp", src, "box:/tmp/"+name)
		in.Must(t, "cp", "box:/tmp/"+name, back)
		if out, err := exec.Command("diff", "-r", src, back).CombinedOutput(); err != nil {
			t.Errorf("%s came back otherwise: %v %s", name, err, harness.Clip(string(out)))
		}
	}
}

func TestAnEditorReadsWritesAndWatchesFiles(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageScratch)
	ctx, c := harness.Bounded(t), in.Client(t)
	none := client.FileOptions{}
	mustBe(t, c.MakeDirectory(ctx, box, "/work/a", true, none))
	changes := make(chan client.FileEvent, 100)
	watched := make(chan error, 1)
	go func() {
		defer close(changes)
		for e, err := range c.WatchFiles(ctx, box, "/work", true, none) {
			if err != nil {
				watched <- err
				return
			}
			changes <- e
		}
		watched <- nil
	}()
	if first := <-changes; first.Change != nil || first.Lost != "" {
		t.Errorf("the watch begins with %v", first)
	}
	await := func(kind agboxv1.FileChangeKind, path string) {
		t.Helper()
		for e := range changes {
			if e.Change.GetKind() == kind && e.Change.GetPath() == path {
				return
			}
		}
		t.Fatalf("the watch ended before %v of %s: %v", kind, path, <-watched)
	}
	mode := uint32(0o600)
	info, err := c.WriteFile(ctx, box, "/work/a/f", strings.NewReader("content"), client.WriteOptions{Mode: &mode})
	mustBe(t, err)
	if info.GetSize() != 7 || info.GetMode() != 0o600 {
		t.Errorf("written: %v", info)
	}
	await(agboxv1.FileChangeKind_FILE_CHANGE_KIND_WRITTEN, "/work/a/f")
	_, err = c.WriteFile(ctx, box, "/work/a/f", strings.NewReader("x"), client.WriteOptions{CreateOnly: true})
	if !errors.Is(err, client.ErrAlreadyExists) {
		t.Errorf("create-only: %v", err)
	}
	var b bytes.Buffer
	mustBe(t, c.ReadFile(ctx, box, "/work/a/f", 3, 2, &b, none))
	if b.String() != "te" {
		t.Errorf("read %q", b.String())
	}
	mustBe(t, c.MoveFile(ctx, box, "/work/a/f", "/work/g", true, none))
	await(agboxv1.FileChangeKind_FILE_CHANGE_KIND_MOVED_IN, "/work/g")
	if _, err := c.StatFile(ctx, box, "/work/a/f", false, none); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("the old name: %v", err)
	}
	var names []string
	for f, err := range c.ListFiles(ctx, box, "/work", none) {
		mustBe(t, err)
		names = append(names, f.GetName())
	}
	if len(names) != 2 {
		t.Errorf("listed %q", names)
	}
	mustBe(t, c.RemoveFile(ctx, box, "/work", true, none))
	await(agboxv1.FileChangeKind_FILE_CHANGE_KIND_REMOVED, "/work")
	if err := <-watched; err != nil {
		t.Errorf("the watch ended with %v", err)
	}
}

func TestAWriteUnderAKillOfTheDaemonIsWholeAndDoneOnce(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageScratch)
	ctx, c := harness.Bounded(t), in.Client(t)
	none := client.FileOptions{}
	_, err := c.WriteFile(ctx, box, "/work/f", strings.NewReader("old"), client.WriteOptions{Parents: true})
	mustBe(t, err)
	slow := &halting{data: bytes.Repeat([]byte("new "), 1<<20), halt: make(chan struct{}), halted: make(chan struct{})}
	wrote := make(chan error, 1)
	go func() {
		_, err := c.WriteFile(ctx, box, "/work/f", slow, client.WriteOptions{})
		wrote <- err
	}()
	<-slow.halted
	in.KillDaemon(t)
	in.Must(t, "daemon", "start")
	var b bytes.Buffer
	mustBe(t, c.ReadFile(ctx, box, "/work/f", 0, 0, &b, none))
	if b.String() != "old" {
		t.Errorf("after the kill it holds %d bytes", b.Len())
	}
	close(slow.halt)
	mustBe(t, <-wrote)
	b.Reset()
	mustBe(t, c.ReadFile(ctx, box, "/work/f", 0, 0, &b, none))
	if !bytes.Equal(b.Bytes(), slow.data) {
		t.Errorf("at the end it holds %d bytes", b.Len())
	}
	harness.Eventually(t, "nothing half done is left", func() bool {
		n := 0
		for _, err := range c.ListFiles(ctx, box, "/work", none) {
			mustBe(t, err)
			n++
		}
		return n == 1
	})
}

// halting is a content whose first read stops in the middle.
type halting struct {
	data         []byte
	at           int64
	halt, halted chan struct{}
	seen         bool
}

func (h *halting) Seek(offset int64, whence int) (int64, error) {
	if whence == io.SeekStart {
		h.at = offset
	}
	return h.at, nil
}

func (h *halting) Read(p []byte) (int, error) {
	if !h.seen && h.at > int64(len(h.data)/2) {
		h.seen = true
		close(h.halted)
		<-h.halt
	}
	if h.at == int64(len(h.data)) {
		return 0, io.EOF
	}
	n := copy(p, h.data[h.at:])
	h.at += int64(n)
	return n, nil
}

func TestACopyGoesOnAfterAKillOfTheDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "box", harness.ImageScratch)
	work := t.TempDir()
	mustBe(t, os.WriteFile(filepath.Join(work, "f"), bytes.Repeat([]byte("0123456789abcdef"), 12<<20), 0o644))
	mustBe(t, os.WriteFile(filepath.Join(work, "old"), []byte("old"), 0o644))
	in.Must(t, "cp", filepath.Join(work, "old"), "box:/f") // so that the daemon has answered the copy: before, any call starts one
	var cp *harness.Process
	harness.Eventually(t, "a copy stands still in its middle", func() bool {
		cp = in.Start(t, "cp", filepath.Join(work, "f"), "box:/f")
		harness.Eventually(t, "the copy is under way", func() bool { return hasRead(t, cp) > 16<<20 })
		_ = cp.Cmd.Process.Signal(syscall.SIGSTOP) // it may have ended
		if hasRead(t, cp) < 128<<20 {
			return true
		}
		_ = cp.Cmd.Process.Signal(syscall.SIGCONT)
		cp.Wait(t)
		return false
	})
	in.KillDaemon(t) // the copy starts the next one
	mustBe(t, cp.Cmd.Process.Signal(syscall.SIGCONT))
	if r := cp.Wait(t); r.Code != 0 {
		t.Fatalf("exit code %d: %s", r.Code, r.Stderr)
	}
	in.KillDaemon(t)
	in.Must(t, "cp", "box:/f", filepath.Join(work, "back"))
	if out, err := exec.Command("cmp", filepath.Join(work, "f"), filepath.Join(work, "back")).CombinedOutput(); err != nil {
		t.Errorf("%s", out)
	}
}

// hasRead is how many bytes a process has read. One that has ended has read everything.
func hasRead(t *testing.T, p *harness.Process) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", p.Cmd.Process.Pid))
	if err != nil {
		return math.MaxInt64
	}
	var n int64
	if _, err := fmt.Sscanf(string(raw), "rchar: %d", &n); err != nil {
		return math.MaxInt64
	}
	return n
}
