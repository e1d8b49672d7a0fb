package faults

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// busyCommand has this test binary cross boundaries in many threads.
const busyCommand = "cross-boundaries"

// busyMain syncs files in a folder until it is killed.
func busyMain(dir string) {
	for n := range 16 {
		go func() {
			runtime.LockOSThread()
			f, err := os.Create(filepath.Join(dir, strconv.Itoa(n)))
			for err == nil {
				err = f.Sync()
			}
		}()
	}
	select {}
}

// TestTheTracerCountsOnceItIsReady traces a process that is at boundaries all the time.
func TestTheTracerCountsOnceItIsReady(t *testing.T) {
	t.Parallel()
	for range 3 {
		dir := t.TempDir()
		busy := exec.Command("/proc/self/exe", busyCommand, dir)
		if err := busy.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = busy.Wait() // it is killed
		}()
		t.Cleanup(func() { _ = busy.Process.Kill() })
		harness.Eventually(t, "all threads sync", func() bool {
			files, err := os.ReadDir(dir)
			return err == nil && len(files) == 16
		})
		if call := traceAndKill(t, busy.Process.Pid, 1, "").killed(); call != "fsync" {
			t.Errorf("the process was killed before %q, want fsync", call)
		}
		<-ended
	}
}
