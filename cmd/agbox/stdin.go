package main

import (
	"errors"
	"io"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// input reads standard input and can be stopped while it waits.
type input struct {
	fd int
	// tty means that the input is a terminal.
	tty bool
	// stop closes stopWrite, which wakes the poll on stopRead.
	stopRead, stopWrite *os.File
	state               atomic.Int32
	done                chan struct{}
}

// The states of an input.
const (
	stoppable int32 = iota
	// direct: in a read that cannot be stopped. In the background, the kernel
	// answers a read of the terminal with SIGTTIN.
	direct
	stopped
)

// readInput calls take with each piece of input until take returns false. The last call
// has an error: io.EOF at the end of the input, else the read error. stop stops reading
// and waits for the reader.
func readInput(f *os.File, take func([]byte, error) bool) (stop func(), err error) {
	if f == nil {
		take(nil, io.EOF)
		return func() {}, nil
	}
	in := &input{fd: int(f.Fd()), done: make(chan struct{})}
	in.tty = term.IsTerminal(in.fd)
	if in.stopRead, in.stopWrite, err = os.Pipe(); err != nil {
		return nil, err
	}
	go func() { // stop waits for it
		defer close(in.done)
		in.run(take)
	}()
	return in.stop, nil
}

func (in *input) stop() {
	_ = in.stopWrite.Close()
	if in.state.Swap(stopped) == direct {
		return // the read cannot be interrupted; it ends with the process
	}
	<-in.done
	_ = in.stopRead.Close()
}

// pieceSize is the largest read, in bytes.
const pieceSize = 256 << 10

func (in *input) run(take func([]byte, error) bool) {
	buf := make([]byte, pieceSize)
	for {
		n, err := in.read(buf)
		if errors.Is(err, errStopped) {
			return
		}
		if err != nil || n <= 0 {
			if err == nil {
				err = io.EOF
			}
			take(nil, err)
			return
		}
		if !take(buf[:n], nil) {
			return
		}
	}
}

var errStopped = errors.New("stopped")

func (in *input) read(buf []byte) (int, error) {
	for {
		if in.tty && !foreground(in.fd) {
			if !in.state.CompareAndSwap(stoppable, direct) {
				return 0, errStopped
			}
			n, err := unix.Read(in.fd, buf)
			if !in.state.CompareAndSwap(direct, stoppable) {
				return 0, errStopped
			}
			if !errors.Is(err, unix.EINTR) {
				return n, err
			}
			continue
		}
		fds := []unix.PollFd{{Fd: int32(in.fd), Events: unix.POLLIN}, {Fd: int32(in.stopRead.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
		switch {
		case fds[1].Revents != 0:
			return 0, errStopped
		case fds[0].Revents == 0:
			continue
		}
		n, err := unix.Read(in.fd, buf)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err == nil && n == 0:
			return 0, io.EOF
		default:
			return n, err
		}
	}
}

// foreground reports whether our process group is the terminal's foreground group.
func foreground(fd int) bool {
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}
