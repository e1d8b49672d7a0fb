package main

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// backgroundTerminal returns the controlling end of a terminal without a foreground
// process group, and its other end.
func backgroundTerminal(t *testing.T) (fd int, output *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	output, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = output.Close() })
	if unix.Getpgrp() == 0 { // a group from outside our PID namespace; the absence of a group looks the same
		if err := unix.Setpgid(0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if foreground(fd) {
		t.Fatal("we have the terminal")
	}
	return fd, output
}

// The reader may just have detected that it is in the background when it is stopped.
func TestInputThatIsStoppedIsNotReadInTheBackground(t *testing.T) {
	fd, output := backgroundTerminal(t)
	if _, err := output.WriteString("a key"); err != nil {
		t.Fatal(err)
	}
	in := &input{fd: fd, tty: true, done: make(chan struct{})}
	var err error
	if in.stopRead, in.stopWrite, err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	close(in.done) // otherwise stop would wait for the reader
	in.stop()
	if n, err := in.read(make([]byte, 16)); !errors.Is(err, errStopped) {
		t.Errorf("read %d bytes, %v", n, err)
	}
}
