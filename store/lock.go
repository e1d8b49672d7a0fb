package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// lockRetry is the interval between two attempts to acquire a lock. flock itself
// has no timeout.
const lockRetry = 20 * time.Millisecond

// flock acquires the lock on f, or returns ErrLocked after wait. Closing f
// releases the lock.
func flock(ctx context.Context, f *os.File, how int, wait time.Duration) error {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		retry := time.NewTimer(lockRetry)
		select {
		case <-retry.C:
		case <-deadline.C:
			retry.Stop()
			return ErrLocked
		case <-ctx.Done():
			retry.Stop()
			return ctx.Err()
		}
	}
}

// lockDir serializes processes that examine or create the files in dir.
func lockDir(ctx context.Context, dir string, wait time.Duration) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := flock(ctx, f, unix.LOCK_EX, wait); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return f.Sync()
}
