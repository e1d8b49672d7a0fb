package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/internal/paths"
)

func (a *app) daemonLogsCommand() *cobra.Command {
	var follow bool
	var tail string
	cmd := &cobra.Command{
		Use:   "logs [-f] [flags]",
		Short: "Show the log of a daemon that agbox has started",
		Long: `Show the log of a daemon that agbox has started, also if it no longer runs. The daemon
renames the file at 10 MiB; this shows the newest part. The log of a daemon that systemd
runs is in the journal: journalctl -u agboxd, or journalctl --user -u agboxd.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			a.began = true
			if err := a.ownSocketOnly(); err != nil {
				return err
			}
			lines, err := tailLines(tail)
			if err != nil {
				return err
			}
			install, err := paths.FromEnv()
			if err != nil {
				return err
			}
			path := install.DaemonLog()
			ctx, done := a.interruptible(cmd.Context())
			defer done()
			var changes *fileFollower
			if follow {
				changes = followFile(path) // before the file is read, so that no change is missed
				defer changes.close()
			}
			err = showFile(ctx, a.stdout, path, lines, changes)
			if errors.Is(err, fs.ErrNotExist) {
				err = &client.Error{Code: codes.NotFound, Message: "There is no " + path + ": agbox has started no daemon here. " +
					"If systemd runs it, see `journalctl -u agboxd`."}
			}
			return cmp.Or(signalled(ctx), err)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "keep showing what is added")
	cmd.Flags().StringVarP(&tail, "tail", "n", "all", "begin with the last `N` lines, or all")
	return cmd
}

// showFile writes the last lines of a file, all if lines is nil. Unless changes is nil, it goes
// on with what is added, also in a file that takes its place, until ctx ends.
func showFile(ctx context.Context, out io.Writer, path string, lines *uint64, changes *fileFollower) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	if err := seekTail(file, lines); err != nil {
		return err
	}
	for {
		if _, err := io.Copy(out, file); err != nil || changes == nil {
			return err
		}
		if next := successor(path, file); next != nil {
			// The daemon renames a file before it opens the next one: this is the rest.
			_, err := io.Copy(out, file)
			_ = file.Close()
			if file = next; err != nil {
				return err
			}
			continue
		}
		if changes.next(ctx) != nil {
			return nil
		}
	}
}

// successor is the file at path if it is another one than file, else nil.
func successor(path string, file *os.File) *os.File {
	old, err := file.Stat()
	if err != nil {
		return nil
	}
	if now, err := os.Stat(path); err != nil || os.SameFile(old, now) {
		return nil
	}
	next, err := os.Open(path)
	if err != nil {
		return nil
	}
	return next
}

// seekTail moves to the last lines of a file; nil means all.
func seekTail(file *os.File, lines *uint64) error {
	if lines == nil {
		return nil
	}
	at, err := file.Seek(0, io.SeekEnd)
	if err != nil || at == 0 {
		return err
	}
	const block = 64 << 10
	piece := make([]byte, block)
	// breaks is how many line breaks are between the place and the end.
	breaks := *lines
	if _, err := file.ReadAt(piece[:1], at-1); err != nil {
		return err
	}
	if piece[0] == '\n' {
		breaks++
	}
	if breaks == 0 {
		return nil
	}
	for at > 0 {
		from := max(at-block, 0)
		part := piece[:at-from]
		if _, err := file.ReadAt(part, from); err != nil {
			return err
		}
		for i := bytes.LastIndexByte(part, '\n'); i >= 0; i = bytes.LastIndexByte(part[:i], '\n') {
			if breaks--; breaks == 0 {
				_, err := file.Seek(from+int64(i)+1, io.SeekStart)
				return err
			}
		}
		at = from
	}
	_, err = file.Seek(0, io.SeekStart)
	return err
}

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
