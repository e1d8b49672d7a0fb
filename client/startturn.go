package client

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// turnBound is how long a caller that starts a daemon is waited for. It may have been
// stopped by job control.
const turnBound = DefaultStartTimeout

// takeTurn waits until no other caller starts a daemon of this install, in this process or
// another, and makes others wait until the returned file is closed. So of many clients that
// miss the same daemon, one starts it. Without a file, or on a file system without locks,
// nobody waits: the daemon's own lock still allows only one daemon.
func (s *starting) takeTurn(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(s.install.Data, 0o700); err != nil {
		return nil, startError("agboxd cannot be started, because its data directory cannot be made: %v.", err)
	}
	turn, err := os.OpenFile(s.install.StartLock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, nil
	}
	bound := time.NewTimer(turnBound)
	defer bound.Stop()
	look := time.NewTicker(startPause)
	defer look.Stop()
	for {
		if err := unix.Flock(int(turn.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			return turn, nil
		}
		select {
		case <-look.C:
			if _, err := listenerPID(ctx, s.install.Socket(), ownUsers()); err == nil {
				return turn, nil
			}
		case <-bound.C:
			return turn, nil
		case <-ctx.Done():
			_ = turn.Close() // nothing was written
			return nil, ended(ctx.Err())
		}
	}
}
