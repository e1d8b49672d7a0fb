package faults

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// fill fills the file system of a folder. The function that it returns frees the space.
func fill(t *testing.T, dir string) func() {
	t.Helper()
	release, err := harness.Fill(dir)
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := release(); err != nil {
			t.Error(err)
		}
	}
}

// wantStoreFailed checks the error of a write that could not be committed.
func wantStoreFailed(t *testing.T, what string, err error) {
	t.Helper()
	var e *client.Error
	if !errors.As(err, &e) || e.Reason != agboxv1.ErrorReason_STORE_FAILED.String() || e.Message == "" {
		t.Errorf("%s: %v, want STORE_FAILED and what to do", what, err)
	}
}

func TestAFullDiskUnderTheDatabaseFailsWritesUntilThereIsSpace(t *testing.T) {
	t.Parallel()
	row := Row(t, 29, "no space under the database", 3)
	home, err := os.MkdirTemp("/tmp", "abd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	harness.SmallDisk(t, home, 64)
	w := newWitness(t, harness.New(t, harness.At(home)))
	pid := w.in.Status(t).PID
	box := w.box(t)
	w.finished(t, box)
	for round := range 3 {
		release := fill(t, home)
		refused := 0
		// The free pages in the file are used first.
		for n := 0; refused < 3 && n < 2000; n++ {
			_, err := w.c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}, EnvOverrides: map[string]string{"A": strings.Repeat("x", 100_000)}})
			if err != nil {
				wantStoreFailed(t, "an exec without space", err)
				if refused++; refused == 1 {
					row.Note("round %d: %v", round+1, err)
				}
			}
		}
		if refused == 0 {
			t.Error("the database never ran out of space")
		}
		_, err := w.c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageBusybox, Envs: map[string]string{"A": strings.Repeat("x", 100_000)}}})
		wantStoreFailed(t, "a create without space", err)
		// Reads still work.
		harness.WantSame(t, "ls -q", w.in.Must(t, "ls", "-q"), box)
		if _, err := w.c.GetSandbox(harness.Bounded(t), box); err != nil {
			t.Error(err)
		}
		release()
		w.finished(t, box)
	}
	if now := w.in.Status(t).PID; now != pid {
		t.Errorf("the daemon was %d and is %d, want no restart", pid, now)
	}
	w.check(t)
}

func TestAFullDiskUnderTheLogsCostsOnlyOutput(t *testing.T) {
	t.Parallel()
	row := Row(t, 30, "no space under the logs", 1)
	in := harness.New(t)
	dir := filepath.Join(in.Home, "data", "exec-logs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	harness.SmallDisk(t, dir, 16)
	w := newWitness(t, in)
	box := w.box(t)
	w.finished(t, box)
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	// Twice what fits on the disk.
	var printed bytes.Buffer
	ended, err := w.c.Run(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, ExecId: "big",
		Command: []string{"sh", "-c", "head -c 32000000 /dev/zero; echo done >&2; exit 23"}}, &printed, io.Discard)
	if err != nil {
		t.Fatalf("a command whose output has no space: %v", err)
	}
	e, err := w.c.GetExec(harness.Bounded(t), "big")
	if err != nil {
		t.Fatal(err)
	}
	row.Note("exit code %d, %d bytes kept, %d dropped; notice %q", ended.Code, e.GetStdoutBytes(), e.GetStdoutDroppedBytes(), ended.Notice)
	if ended.Code != 23 || e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != 23 ||
		e.GetStdoutBytes()+e.GetStdoutDroppedBytes() != 32_000_000 || e.GetStdoutDroppedBytes() == 0 || uint64(printed.Len()) != e.GetStdoutBytes() {
		t.Errorf("the exec ended with %d and is %v; %d bytes were read", ended.Code, e, printed.Len())
	}
	// An exec that cannot be recorded is not started, because it might run twice.
	release := fill(t, dir)
	refused := w.in.Agbox(t, "exec", box, "--", "true")
	if refused.Code != 126 || !strings.Contains(refused.Stderr, "full") {
		t.Errorf("a command without space for its status: exit code %d, said %s", refused.Code, refused.Stderr)
	}
	release()
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	w.finished(t, box)
	wantGapWhereTheDiskWasFull(t, w, box, dir)
	w.check(t)
}

// wantGapWhereTheDiskWasFull fills the disk in the middle of a command's output.
func wantGapWhereTheDiskWasFull(t *testing.T, w *witness, box, dir string) {
	t.Helper()
	sess, err := w.c.AttachExec(harness.Bounded(t), client.AttachOptions{
		Create: &agboxv1.CreateExecRequest{SandboxId: box, ExecId: "gap", Stdin: true, Command: []string{"sh", "-c",
			`echo before; read go; head -c 1000000 /dev/zero; : > /tmp/said; read go; for i in $(seq 30); do echo after; sleep 0.1; done`}},
		Input: agboxv1.InputMode_INPUT_MODE_IF_FREE,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Detach()
	harness.Eventually(t, "the first line in the log", func() bool {
		info, err := os.Stat(filepath.Join(dir, box, "gap.stdout.log"))
		return err == nil && info.Size() > 0
	})
	release := fill(t, dir)
	_, _ = sess.Write([]byte("\n"))
	// More than a pipe holds, so most of it is in the log by then.
	harness.Eventually(t, "the end of the long output", func() bool {
		_, err := w.c.StatFile(harness.Bounded(t), box, "/tmp/said", false, client.FileOptions{})
		return err == nil
	})
	release()
	_, _ = sess.Write([]byte("\n"))

	var output [2]string // before and after the gap
	var gap client.LogItem
	part := 0
	for item, err := range sess.Items() {
		switch {
		case err != nil:
			t.Fatal(err)
		case item.Dropped > 0 && part == 0:
			gap, part = item, 1
		case item.Dropped > 0:
			t.Errorf("a second gap of %d bytes at %d", item.Dropped, item.Offset)
		case item.End != nil:
			if e := item.End.GetExec(); e.GetStdoutDroppedBytes() != gap.Dropped || gap.Offset != uint64(len(output[0])) {
				t.Errorf("the gap of %d bytes is at %d of %d; the exec is %v", gap.Dropped, gap.Offset, len(output[0]), e)
			}
		default:
			output[part] += string(item.Data)
		}
	}
	if strings.Trim(output[0], "\x00") != "before\n" || !strings.HasPrefix(strings.TrimLeft(output[1], "\x00"), "after\n") {
		t.Errorf("before the gap is %q, behind it %q", harness.Clip(output[0]), harness.Clip(output[1]))
	}
	r := w.in.Agbox(t, "logs", "gap").Want(t, 0)
	if want := fmt.Sprintf("agbox: %d bytes of stdout were dropped here, because the disk or the log was full.\n", gap.Dropped); r.Stdout != output[0]+output[1] || r.Stderr != want {
		t.Errorf("logs prints %d bytes and says %s", len(r.Stdout), r.Stderr)
	}
	if text := w.in.Must(t, "logs", "-o", "json", "gap"); !strings.Contains(text, fmt.Sprintf(`"dropped_bytes":%d}`, gap.Dropped)) {
		t.Errorf("logs -o json does not tell of the gap: %s", harness.Clip(text))
	}
}

// stopped kills the daemon and returns the path of its database.
func (w *witness) stopped(t *testing.T) string {
	t.Helper()
	w.kill(t)
	return filepath.Join(w.in.Home, "data", "ids.db")
}

// wantRefused starts a daemon that must refuse to start, with a sentence and without
// changing the database.
func (w *witness) wantRefused(t *testing.T, damage string) {
	t.Helper()
	before := sum(t, filepath.Join(w.in.Home, "data", "ids.db"))
	r := w.in.StartBinary(t, "agboxd", "run").Wait(t)
	if r.Code == 0 || strings.Contains(r.Stderr, "goroutine ") || !strings.Contains(r.Stderr, "agboxd: The database ") {
		t.Errorf("a database that is %s: exit code %d, said\n%s", damage, r.Code, r.Stderr)
	}
	if after := sum(t, filepath.Join(w.in.Home, "data", "ids.db")); after != before {
		t.Errorf("a database that is %s was changed", damage)
	}
}

// sum returns the checksum of a file, or "" if there is none.
func sum(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}

func TestADamagedDatabaseIsRefusedAndNothingTouched(t *testing.T) {
	t.Parallel()
	w := newWitness(t, harness.New(t))
	boxes := []string{w.box(t), w.box(t)}
	for _, box := range boxes {
		w.finished(t, box)
	}
	path := w.stopped(t)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := os.Getpagesize()
	damages := map[string]func([]byte) []byte{
		"truncated to half":           func(b []byte) []byte { return b[:len(b)/2] },
		"truncated to one page":       func(b []byte) []byte { return b[:page] },
		"empty":                       func([]byte) []byte { return nil },
		"zeroed":                      func(b []byte) []byte { return make([]byte, len(b)) },
		"zeroed in the first page":    func(b []byte) []byte { clear(b[:page]); return b },
		"something else":              func(b []byte) []byte { return []byte(strings.Repeat("not a database\n", 1000)) },
		"flipped in the first meta":   func(b []byte) []byte { b[16+20] ^= 1; return b },
		"flipped in the second meta":  func(b []byte) []byte { b[page+16+20] ^= 1; return b },
		"zeroed behind the two metas": func(b []byte) []byte { clear(b[2*page:]); return b },
	}
	Row(t, 31, "database truncated, zeroed, bit-flipped", len(damages))
	for name, damage := range damages {
		if err := os.WriteFile(path, damage(bytes.Clone(good)), 0o600); err != nil {
			t.Fatal(err)
		}
		w.wantRefused(t, name)
	}

	Row(t, 32, "database gone while labelled containers exist", 1)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	w.wantRefused(t, "gone")

	if err := os.WriteFile(path, good, 0o600); err != nil {
		t.Fatal(err)
	}
	w.in.Must(t, "daemon", "start")
	w.check(t)
}

func TestOneBadRecordStopsNobodyElse(t *testing.T) {
	t.Parallel()
	Row(t, 31, "one record of the database cannot be read", 1)
	w := newWitness(t, harness.New(t))
	good := w.box(t)
	const mark = "unmistakable-mark-of-the-bad-record"
	bad := w.in.Must(t, "create", "--image", harness.ImageBusybox, "--label", "mark="+mark)
	w.finished(t, good)
	path := w.stopped(t)
	sound, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// Invalid UTF-8, which no message may contain.
	broken := bytes.ReplaceAll(bytes.Clone(sound), []byte(mark), bytes.Repeat([]byte{0xff}, len(mark)))
	if bytes.Equal(broken, sound) {
		t.Fatal("the database does not hold the mark")
	}
	if err := os.WriteFile(path, broken, 0o600); err != nil {
		t.Fatal(err)
	}
	w.in.Must(t, "daemon", "start")
	w.finished(t, good)
	if !exists(t, "agbox-primary-"+bad) {
		t.Error("the container of the bad record is gone")
	}
	w.stopped(t)
	// With its record repaired, the sandbox exists again. What happened meanwhile in the
	// other one is lost with this file, so the marks are restored.
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mended := bytes.ReplaceAll(now, bytes.Repeat([]byte{0xff}, len(mark)), []byte(mark))
	if err := os.WriteFile(path, mended, 0o600); err != nil {
		t.Fatal(err)
	}
	w.in.Must(t, "daemon", "start")
	w.holds(bad, agboxv1.SandboxState_SANDBOX_STATE_READY)
	w.in.Must(t, "exec", bad, "--", "true")
	w.check(t)
}

// injecting makes calls of the daemon fail until the function that it returns is called.
func injecting(t *testing.T, pid int, what string) func() {
	t.Helper()
	cmd := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-p", strconv.Itoa(pid), "-e", "trace=fdatasync,pwrite64", "-e", "inject="+what)
	if out, err := cmd.StderrPipe(); err != nil {
		t.Fatal(err)
	} else {
		go func() { _, _ = io.Copy(io.Discard, out) }() // ends with strace
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: %s", err, harness.Remedy)
	}
	traced := fmt.Sprintf("TracerPid:\t%d\n", cmd.Process.Pid)
	harness.Eventually(t, "strace has all threads of the daemon", func() bool {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
		for _, task := range tasks {
			if raw, err := os.ReadFile(task); err == nil && !bytes.Contains(raw, []byte(traced)) {
				return false
			}
		}
		return len(tasks) > 0
	})
	return func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait()
	}
}

func TestAFailedFsyncStopsWritesUntilARestart(t *testing.T) {
	t.Parallel()
	row := Row(t, 33, "fdatasync fails with EIO", 1)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	w.finished(t, box)
	mend := injecting(t, w.in.Status(t).PID, "fdatasync:error=EIO")
	_, err := w.c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{SandboxId: ids.New(), CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageBusybox}})
	wantStoreFailed(t, "a create whose fsync fails", err)
	row.Note("%v", err)
	mend()
	// The disk works again, but what has reached it is unknown.
	_, err = w.c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}})
	wantStoreFailed(t, "an exec after a failed fsync", err)
	harness.WantSame(t, "ls -q", strings.Fields(w.in.Must(t, "ls", "-q"))[0], box)
	w.kill(t)
	w.in.Must(t, "daemon", "start")
	// The create may have reached the disk or not, but not half of it: what exists can be
	// removed.
	for _, id := range strings.Fields(w.in.Must(t, "ls", "-q")) {
		if id != box {
			w.in.Must(t, "rm", "--wait", "-f", id)
		}
	}
	w.finished(t, box)
	w.check(t)
}

func TestAReadOnlyFileSystemFailsWritesUntilItIsWritableAgain(t *testing.T) {
	t.Parallel()
	row := Row(t, 33, "writes fail with EROFS", 1)
	w := newWitness(t, harness.New(t))
	box := w.box(t)
	w.finished(t, box)
	pid := w.in.Status(t).PID
	mend := injecting(t, pid, "pwrite64:error=EROFS")
	_, err := w.c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{SandboxId: box, Command: []string{"true"}})
	wantStoreFailed(t, "an exec whose write fails", err)
	row.Note("%v", err)
	harness.WantSame(t, "ls -q", w.in.Must(t, "ls", "-q"), box)
	mend()
	w.finished(t, box)
	if now := w.in.Status(t).PID; now != pid {
		t.Errorf("the daemon was %d and is %d, want no restart", pid, now)
	}
	w.check(t)
}

// TestADaemonStartsAndReadsOnAFullDisk kills the daemon while its disk is full: the next one must
// serve what is there, and go on once there is space.
func TestADaemonStartsAndReadsOnAFullDisk(t *testing.T) {
	t.Parallel()
	Row(t, 29, "a start of the daemon without space for anything", 3)
	home, err := os.MkdirTemp("/tmp", "abd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	harness.SmallDisk(t, home, 64)
	w := newWitness(t, harness.New(t, harness.At(home)))
	box := w.box(t)
	w.finished(t, box)
	for range 3 {
		release := fill(t, home)
		w.kill(t)
		harness.WantSame(t, "ls -q", w.in.Must(t, "ls", "-q"), box)
		w.in.Must(t, "inspect", box)
		release()
		w.finished(t, box)
	}
	w.check(t)
}
