package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// filePoll is how often a file is looked at that the kernel does not watch.
const filePoll = 250 * time.Millisecond

// fileFollower tells when a file may have changed. The file may be renamed and made again.
type fileFollower struct {
	path   string
	events <-chan fsnotify.Event
	// lost has a value when events were lost.
	lost <-chan error
	// tick has a value whenever the file must be looked at, if the kernel does not watch it.
	tick <-chan time.Time
	// ends is what close does.
	ends []func()
}

// followFile begins to watch a file. If the kernel has no room for that, the file is polled.
// close must be called.
func followFile(path string) *fileFollower {
	f := &fileFollower{path: path}
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		f.ends = append(f.ends, func() { _ = watcher.Close() }) // nothing is written
		f.events, f.lost = watcher.Events, watcher.Errors
		err = watcher.Add(filepath.Dir(path))
	}
	if err != nil {
		f.poll()
	}
	return f
}

func (f *fileFollower) poll() {
	ticker := time.NewTicker(filePoll)
	f.tick, f.ends = ticker.C, append(f.ends, ticker.Stop)
}

func (f *fileFollower) close() {
	for _, end := range f.ends {
		end()
	}
}

// next returns when the file may have changed, or with the error of ctx.
func (f *fileFollower) next(ctx context.Context) error {
	for {
		select {
		case e := <-f.events:
			switch {
			case e.Name == f.path && (e.Has(fsnotify.Write) || e.Has(fsnotify.Create)):
				return nil
			case e.Name == filepath.Dir(f.path) && f.tick == nil: // the folder was removed or renamed
				f.poll()
				return nil
			}
		case <-f.lost: //nolint:errcheck // any error means that events were lost
			return nil
		case <-f.tick:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
