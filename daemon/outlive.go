package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// outliveWithin bounds the wait for an ending process. The kernel needs milliseconds
// to close the files of a killed daemon, longer where a disk is slow. It is shorter
// than a client waits for a daemon that it has started.
var outliveWithin = 10 * time.Second

// outlivePause is the pause between two attempts. No signal announces that a process has
// closed its files: its id belongs to a zombie before that, and may be reused after it.
const outlivePause = 5 * time.Millisecond

// inTheWay is the error that a process still holds a file although it no longer lives, or should
// not for long.
type inTheWay struct {
	// pid is 0 if the holder has not written its id yet.
	pid int
	// what is the path of the file that it holds.
	what string
	// lives is the error if the process lives and does not end.
	lives error
}

// Error says what to do if waiting did not help.
func (e *inTheWay) Error() string {
	if e.lives != nil {
		return e.lives.Error()
	}
	return fmt.Sprintf("The agboxd that held %s (pid %d) was killed, but the kernel has not ended it in %v, most likely because a disk does not answer. Start agboxd again when that process is gone.",
		e.what, e.pid, outliveWithin)
}

// Unwrap treats the process as a running daemon, because it may still be writing.
func (e *inTheWay) Unwrap() error {
	if e.lives != nil {
		return e.lives
	}
	return ErrRuns
}

// outlive calls try until it returns something other than an inTheWay, for at most
// outliveWithin.
func outlive(ctx context.Context, log *slog.Logger, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, outliveWithin)
	defer cancel()
	again := time.NewTicker(outlivePause)
	defer again.Stop()
	for told := false; ; told = true {
		err := try()
		var held *inTheWay
		if !errors.As(err, &held) {
			return err
		}
		if !told {
			log.Info("the agboxd before this one is still ending and is waited for", "pid", held.pid, "holds", held.what)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}
