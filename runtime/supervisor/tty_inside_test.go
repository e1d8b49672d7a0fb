package supervisor

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

func TestWhatStandsForTheMultiplexerMustBeTheDevice(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/file", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	defer func(usual []string) { multiplexers = usual }(multiplexers)
	for _, name := range []string{filepath.Join(dir, "none"), dir + "/file", dir + "/fifo", dir, "/dev/null"} {
		multiplexers = []string{name}
		master, slave, fail := openTerminal(&guestv1.StartRequest{}, os.Getuid())
		if fail == nil {
			t.Errorf("%s made a terminal: %v", name, []error{master.Close(), slave.Close()})
			continue
		}
		if fail.kind != guestv1.StartFailure_START_FAILURE_OTHER || !strings.HasPrefix(fail.message, "The sandbox has no terminals (") || !strings.Contains(fail.message, "/dev/ptmx") {
			t.Errorf("%s: %q", name, fail.message)
		}
	}
}

// While the disk is slow, the end of an exec waits for what its terminal held,
// although a grandchild has the terminal open all the time.
func TestWhatATerminalHeldIsWaitedForUntilItIsInTheLog(t *testing.T) {
	const size = 3000 // fits in a terminal
	s := newInside(t)
	req := &guestv1.StartRequest{ExecId: "e", Tty: true}
	writer, fail := s.createLogs(t.Context(), req)
	if fail != nil {
		t.Fatal(fail.message)
	}
	defer func() { _ = writer.Close() }()
	master, slave, fail := openTerminal(req, os.Getuid())
	if fail != nil {
		t.Fatal(fail.message)
	}
	if _, err := slave.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	disk := make(gate, 1)
	disk <- struct{}{}
	term := newTerminal(master, writer, disk)
	var running sync.WaitGroup
	running.Go(term.run)
	drained := make(chan struct{})
	go func() { term.drain(); close(drained) }()
	for taken := false; !taken; runtime.Gosched() {
		term.mu.Lock()
		taken = term.taken == size
		term.mu.Unlock()
	}
	select {
	case <-drained:
		t.Error("it did not wait")
	default:
	}
	<-disk
	<-drained
	if n := writer.Counts(); n.Stdout != size {
		t.Errorf("%d bytes are in the log", n.Stdout)
	}
	_ = slave.Close()
	running.Wait()
	_ = master.Close()
}
