package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// maxDaemonLog is the size at which the daemon renames its log, in bytes.
const maxDaemonLog = 10 << 20

func TestTheLogOfTheDaemonStaysWithinBounds(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	log := filepath.Join(in.Home, "data", "agboxd.log")
	says := func(text string) bool {
		content, err := os.ReadFile(log)
		return err == nil && strings.Contains(string(content), text)
	}
	fill := func() {
		t.Helper()
		if err := os.Truncate(log, maxDaemonLog); err != nil {
			t.Fatal(err)
		}
	}
	wantRenamed := func(files ...string) {
		t.Helper()
		names, err := filepath.Glob(log + "*")
		if err != nil || len(names) != len(files)+1 {
			t.Errorf("there are %v (%v), want %v beside the log", names, err, files)
		}
		for _, file := range files {
			if st, err := os.Stat(file); err != nil || st.Size() < maxDaemonLog {
				t.Errorf("%s is %v (%v), want the full log", file, st, err)
			}
		}
		if st, err := os.Stat(log); err != nil || st.Size() >= maxDaemonLog || st.Mode().Perm() != 0o600 {
			t.Errorf("the log is %v (%v)", st, err)
		}
	}

	fill()
	in.Must(t, "daemon", "upgrade", "--binary", filepath.Join(in.Bin, "agboxd"))
	wantRenamed(log + ".1")
	if !says("this agboxd") || !says("agboxd is ready") {
		t.Error("one of the two daemons does not write to the new log")
	}

	// What the runtime writes at a crash goes to the same file.
	fill()
	in.Must(t, "daemon", "upgrade", "--binary", filepath.Join(in.Bin, "agboxd"))
	kill := in.AimAtDaemon(t)
	if err := syscall.Kill(in.Status(t).PID, syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the log shows the goroutines", func() bool { return says("goroutine ") })
	wantRenamed(log+".1", log+".2")
	kill()

	// Also for a daemon that fails before it serves.
	fill()
	in.configure(t, "no-such-setting: 1\n")
	if end := in.Agbox(t, "daemon", "start"); end.Code == 0 || !strings.Contains(end.Stderr, "no-such-setting") {
		t.Errorf("it ended with %+v, want what the log says", end)
	}
	wantRenamed(log+".1", log+".2", log+".3")
	in.configure(t, "")
	for range 2 {
		fill()
		in.Must(t, "daemon", "start")
		in.Must(t, "daemon", "stop")
	}
	wantRenamed(log+".1", log+".2", log+".3")
}
