package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/workspace/covers"
	"github.com/agbox/agbox/workspace/edits"
	"github.com/agbox/agbox/workspace/gitignore"
)

const (
	// gather is how long a round waits after a change: programs make several at once.
	gather = 100 * time.Millisecond
	// syncPoll is how often the sides are compared without a notice, and blindPoll how often
	// if a side cannot be watched completely.
	syncPoll  = 30 * time.Second
	blindPoll = 2 * time.Second
	// awayBound is how long a sandbox may be out of reach, as after a start of the daemon on a
	// busy machine.
	awayBound = time.Minute
)

// syncWatch notices changes on both sides.
type syncWatch struct {
	*syncing
	// wake has a value if something may have changed.
	wake chan struct{}
	host *fsnotify.Watcher
	// watched are the folders that host watches.
	watched map[string]bool
	// inStep is when the last round ended well, and held why a round before it could not.
	inStep time.Time
	held   string

	mu sync.Mutex
	// blind are the sentences about what is not watched. mu guards it.
	blind map[string]bool
}

// watch does rounds whenever something may have changed, until ctx ends.
func (s *syncing) watch(ctx context.Context) error {
	host, err := fsnotify.NewWatcher()
	w := &syncWatch{syncing: s, wake: make(chan struct{}, 1), host: host, watched: make(map[string]bool), inStep: time.Now(), blind: make(map[string]bool)}
	if err != nil {
		w.miss(fmt.Sprintf("This machine does not watch the folder (%v).", err))
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	if host != nil {
		running.Go(func() { w.hostEvents(ctx) })
	}
	running.Go(func() { w.sandboxEvents(ctx) })
	w.changed() // what happened before the watches stood
	for {
		took, err := w.rounds(ctx)
		if err != nil {
			return err
		}
		if err := w.rest(ctx, took); err != nil {
			return err
		}
	}
}

// rounds brings both sides in step, and returns how long it took.
func (w *syncWatch) rounds(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	w.follow(w.folders)
	err := w.settle(ctx)
	var own *Error
	switch {
	case err != nil && ctx.Err() != nil:
		return 0, ctx.Err()
	case errors.Is(err, edits.ErrBusy), errors.As(err, &own) && own.Code == codes.Unavailable && begun.Sub(w.inStep) < awayBound:
		w.changed()
		return time.Since(begun), nil
	case errors.Is(err, ErrGitNotDone):
		w.inStep, w.held = time.Now(), own.Message
		w.miss(w.held)
		return time.Since(begun), nil
	case err != nil:
		return 0, err
	}
	w.mu.Lock()
	delete(w.blind, w.held)
	w.mu.Unlock()
	w.inStep = time.Now()
	w.follow(w.folders)
	return time.Since(begun), nil
}

// rest waits until something may have changed.
func (w *syncWatch) rest(ctx context.Context, took time.Duration) error {
	poll := time.NewTimer(w.interval())
	defer poll.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-poll.C:
	case <-w.wake:
	}
	pause := time.NewTimer(max(gather, 2*took))
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-pause.C:
		return nil
	}
}

func (w *syncWatch) interval() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.blind) > 0 {
		return blindPoll
	}
	return syncPoll
}

// changed wakes the rounds.
func (w *syncWatch) changed() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// miss remembers that a side is not watched completely, and says so once.
func (w *syncWatch) miss(why string) {
	w.mu.Lock()
	known := w.blind[why]
	w.blind[why] = true
	w.mu.Unlock()
	if !known && w.o.Trouble != nil {
		w.o.Trouble(why)
	}
}

// follow watches the folders of the host.
func (w *syncWatch) follow(folders []string) {
	if w.host == nil {
		return
	}
	now := make(map[string]bool, len(folders))
	for _, dir := range folders {
		now[dir] = true
		if w.watched[dir] {
			continue
		}
		if err := w.host.Add(filepath.Join(w.scanner.Folder, dir)); err != nil {
			w.miss("Not all folders of this machine are watched: raise fs.inotify.max_user_watches for quicker notice.")
			return
		}
		w.watched[dir] = true
		w.changed() // what happened in it before
	}
	for dir := range w.watched {
		if !now[dir] {
			_ = w.host.Remove(filepath.Join(w.scanner.Folder, dir)) // it may be gone
			delete(w.watched, dir)
		}
	}
}

// hostEvents wakes the rounds when the folder changes.
func (w *syncWatch) hostEvents(ctx context.Context) {
	defer w.host.Close() // only watched
	for {
		select {
		case <-ctx.Done():
			return
		case e, ok := <-w.host.Events:
			if !ok {
				return
			}
			if name, err := filepath.Rel(w.scanner.Folder, e.Name); err == nil && edits.Ours(name) {
				continue
			}
			w.changed()
		case _, ok := <-w.host.Errors: // too many events
			if !ok {
				return
			}
			w.changed()
		}
	}
}

// sandboxEvents wakes the rounds when the workspace changes.
func (w *syncWatch) sandboxEvents(ctx context.Context) {
	for ctx.Err() == nil {
		for e, err := range w.c.WatchFiles(ctx, w.id, w.target, true, FileOptions{}) {
			if err != nil {
				break
			}
			if e.Lost != "" && strings.Contains(e.Lost, "not watched") {
				w.miss(e.Lost)
			}
			if e.Change != nil {
				name, _ := strings.CutPrefix(e.Change.GetPath(), w.target+"/")
				if gitignore.Inside(name) {
					continue
				}
			}
			w.changed()
		}
		// The workspace was removed, or the daemon is away for long: the rounds tell.
		pause := time.NewTimer(blindPoll)
		select {
		case <-ctx.Done():
		case <-pause.C:
			w.changed()
		}
		pause.Stop()
	}
}

// Sync brings what a READY sandbox has changed in its workspace to the folder that was
// copied in, and what the folder has changed to the sandbox. A file that both have changed
// differently stays on both sides as it is. Files that a .gitignore names are left out,
// and if only what git tracks was copied in, new ones that git does not track there, unless they
// were copied in or brought. What both sides have then is the new base, as after ApplyWork.
//
// With Watch it goes on: it continues after a restart of the daemon, and returns the error
// of ctx, or why it cannot go on. conflicts is the number of files in conflict at the end.
func (c *Client) Sync(ctx context.Context, sandbox string, o SyncOptions) (conflicts int, err error) {
	out, err := c.GetSandbox(ctx, sandbox)
	if err != nil {
		return 0, err
	}
	install, err := paths.FromEnv()
	if err != nil {
		return 0, err
	}
	s := &syncing{
		c: c, data: install.Folders(), id: out.GetSandbox().GetSandboxId(), label: labelOf(out.GetSandbox()), o: o,
		tracked: out.GetCreateSpec().GetWorkspace().GetTracked(), conflicts: make(map[string]string), asked: covers.Consent{Agree: o.Agree}, home: homeCheck{c: c},
	}
	defer s.close()
	if s.from, err = c.origin(ctx, s.id); err == nil {
		err = s.from.folderThere(ctx)
	}
	if err != nil {
		return 0, err
	}
	err = s.settle(ctx)
	if o.Watch && (err == nil || errors.Is(err, ErrGitNotDone)) {
		err = s.watch(ctx)
	}
	return len(s.conflicts), localError("Keeping "+cmp.Or(s.scanner.Folder, "the folder")+" in step", err)
}
