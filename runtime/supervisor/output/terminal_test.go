package output

import (
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/logs"
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
		if master, slave, err := OpenTerminal(os.Getuid(), 0, 0); err == nil {
			t.Errorf("%s made a terminal: %v", name, []error{master.Close(), slave.Close()})
		}
	}
}

// While the disk is slow, the end of an exec waits for what its terminal held,
// although a grandchild has the terminal open all the time.
func TestWhatATerminalHeldIsWaitedForUntilItIsInTheLog(t *testing.T) {
	const size = 3000 // fits in a terminal
	writer := newLog(t)
	master, slave, err := OpenTerminal(os.Getuid(), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := slave.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	disk := make(chan struct{}, 1)
	disk <- struct{}{}
	term := &pump{stream: logs.Stdout, writer: writer, disk: held(disk), file: master, terminal: true}
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
