package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// opened opens the file as whoever starts a daemon does.
func opened(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func newWriter(t *testing.T, path string, limit int64, keep int) *logWriter {
	t.Helper()
	w := &logWriter{path: path, out: opened(t, path), max: limit, keep: keep}
	w.begin()
	return w
}

func write(t *testing.T, w *logWriter, text string) {
	t.Helper()
	if n, err := w.Write([]byte(text)); n != len(text) || err != nil {
		t.Fatalf("wrote %d bytes of %q: %v", n, text, err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(text)
}

func want(t *testing.T, path, text string) {
	t.Helper()
	if got := read(t, path); got != text {
		t.Errorf("%s holds %q, want %q", filepath.Base(path), got, text)
	}
}

func TestAFullFileIsRenamedAndTheOldestGoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := newWriter(t, path, 10, 2)
	for i := range 7 {
		write(t, w, fmt.Sprintf("rec%d\n", i)) // two fit
	}
	want(t, path, "rec6\n")
	want(t, path+".1", "rec4\nrec5\n")
	want(t, path+".2", "rec2\nrec3\n")
	want(t, path+".3", "")
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the new file is %v (%v)", st, err)
	}
}

func TestARecordLargerThanTheFileHasOneOfItsOwn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	w := newWriter(t, path, 10, 2)
	long := strings.Repeat("x", 30)
	for _, text := range []string{"a", long, "b"} {
		write(t, w, text)
	}
	want(t, path, "b")
	want(t, path+".1", long)
	want(t, path+".2", "a")
}

func TestAFileThatIsFullAtTheStartIsRenamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("of an earlier daemon"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWriter(t, path, 10, 2)
	want(t, path, "")
	want(t, path+".1", "of an earlier daemon")
	write(t, w, "new")
	want(t, path, "new")
}

func TestWhatElseHasTheFileOpenGetsTheNewOneToo(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	stdout, other := opened(t, path), opened(t, filepath.Join(dir, "other"))
	w := &logWriter{path: path, out: opened(t, path), also: []*os.File{stdout, other}, max: 10, keep: 2}
	w.begin()
	write(t, w, "12345678")
	write(t, w, "9abc\n")
	fmt.Fprint(stdout, "out")
	fmt.Fprint(other, "else")
	want(t, path, "9abc\nout")
	want(t, path+".1", "12345678")
	want(t, filepath.Join(dir, "other"), "else")
	for _, f := range []*os.File{w.out, stdout} {
		if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC != 0 {
			t.Errorf("the program that this one becomes would not have descriptor %d (%v)", f.Fd(), err)
		}
	}
}

func TestAFileThatSomebodyMovedOrRemovedIsMadeAgain(t *testing.T) {
	for name, act := range map[string]func(path string) error{
		"moved":   func(path string) error { return os.Rename(path, path+".1") },
		"removed": os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "log")
			w := newWriter(t, path, 100, 2)
			write(t, w, "before\n")
			if err := act(path); err != nil {
				t.Fatal(err)
			}
			write(t, w, "after\n")
			want(t, path, "after\n")
		})
	}
}

func TestAnUpgradeDuringARotationLosesNoBound(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	out := opened(t, path)
	if err := os.Rename(path, path+".1"); err != nil { // by another process, just now
		t.Fatal(err)
	}
	w := &logWriter{path: path, out: out, max: 10, keep: 2}
	w.begin()
	write(t, w, "new")
	want(t, path, "new")
	want(t, path+".1", "")
}

func TestWhatIsNotTheLogFileIsOnlyWrittenTo(t *testing.T) {
	dir := t.TempDir()
	path, elsewhere := filepath.Join(dir, "log"), filepath.Join(dir, "elsewhere")
	if err := os.WriteFile(path, []byte("of another daemon"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := &logWriter{path: path, out: opened(t, elsewhere), max: 10, keep: 2}
	w.begin()
	write(t, w, "1234567890")
	write(t, w, "1234567890")
	want(t, path, "of another daemon")
	want(t, elsewhere, "12345678901234567890")
	want(t, elsewhere+".1", "")
}

func TestAFileThatCannotBeRenamedStaysWithinItsBounds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.MkdirAll(filepath.Join(path+".1", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := newWriter(t, path, 1000, 1)
	for range 50 {
		write(t, w, strings.Repeat("x", 99)+"\n")
	}
	got := read(t, path)
	if len(got) > 1500 || !strings.HasPrefix(got, "agboxd: the log file ") || !strings.Contains(got, "was emptied") || !strings.HasSuffix(got, "x\n") {
		t.Errorf("the file has %d bytes: %.300q", len(got), got)
	}
}

func TestProcessesThatShareTheFileLoseNothing(t *testing.T) {
	const writers, records = 4, 500
	path := filepath.Join(t.TempDir(), "log")
	var writing sync.WaitGroup
	for i := range writers {
		w := newWriter(t, path, 1000, records) // with a descriptor of its own, as in a process of its own
		writing.Go(func() {
			for n := range records {
				write(t, w, fmt.Sprintf("writer %d record %d\n", i, n))
			}
		})
	}
	writing.Wait()
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) < 3 {
		t.Fatalf("there are %v (%v)", files, err)
	}
	seen := make(map[string]int)
	for _, file := range files {
		for line := range strings.Lines(read(t, file)) {
			seen[line]++
		}
	}
	for i := range writers {
		for n := range records {
			if line := fmt.Sprintf("writer %d record %d\n", i, n); seen[line] != 1 {
				t.Fatalf("%q was kept %d times", line, seen[line])
			}
		}
	}
}

// record makes a line of a sandbox at a time.
func record(at time.Time, message, sandbox string) slog.Record {
	r := slog.NewRecord(at, slog.LevelWarn, message, 0)
	r.AddAttrs(slog.String("sandbox_id", sandbox))
	return r
}

func TestAFloodOfOneSandboxIsCountedAndLeavesOthersAlone(t *testing.T) {
	var out bytes.Buffer
	h := limitRepeats(slog.NewTextHandler(&out, nil))
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	log := func(at time.Time, message, sandbox string) {
		if err := h.WithAttrs(nil).Handle(context.Background(), record(at, message, sandbox)); err != nil {
			t.Fatal(err)
		}
	}
	for range 100_000 {
		log(now, "flood", "a")
	}
	if n := strings.Count(out.String(), "\n"); n != burst {
		t.Errorf("a flood within one second gives %d lines", n)
	}
	log(now, "flood", "b")
	log(now, "another", "a")
	if n := strings.Count(out.String(), "\n"); n != burst+2 {
		t.Error("the flood of one sandbox holds back other lines")
	}
	out.Reset()
	log(now.Add(time.Second), "flood", "a")
	log(now.Add(time.Second), "flood", "a")
	if text := out.String(); strings.Count(text, "\n") != 2 || strings.Count(text, fmt.Sprintf("suppressed=%d", 100_000-burst)) != 1 {
		t.Errorf("the next lines are %q", text)
	}
}

func TestTheNumberOfMessagesIsBounded(t *testing.T) {
	h := limitRepeats(slog.DiscardHandler)
	for i := range 3 * maxKeys {
		_ = h.Handle(context.Background(), record(time.Now(), fmt.Sprint(i), "a"))
	}
	if n := len(h.kinds); n > maxKeys {
		t.Errorf("%d messages are remembered", n)
	}
}
