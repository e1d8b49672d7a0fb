package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"
)

func TestTheLastLinesOfTheDaemonsLogAreShown(t *testing.T) {
	long := strings.Repeat("a line of the log of the daemon\n", 5000)
	for _, test := range []struct {
		content, lines, want string
	}{
		{"one\ntwo\nthree\n", "all", "one\ntwo\nthree\n"},
		{"one\ntwo\nthree\n", "2", "two\nthree\n"},
		{"one\ntwo\nthree", "2", "two\nthree"},
		{"one\ntwo\nthree\n", "9", "one\ntwo\nthree\n"},
		{"one\ntwo\n", "0", ""},
		{"one\ntwo", "0", ""},
		{"\n\n", "1", "\n"},
		{"", "1", ""},
		{long, "4000", long[len(long)/5:]},
	} {
		home := t.TempDir()
		t.Setenv("AGBOX_HOME", home)
		path := filepath.Join(home, "data", "agboxd.log")
		if code, _, errs := agbox(t, "", "daemon", "logs"); code != codeNotFound || !strings.Contains(errs, "There is no "+path) || !strings.Contains(errs, "journalctl -u agboxd") {
			t.Fatalf("without a log: code %d, %q", code, errs)
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, errs := agbox(t, "", "daemon", "logs", "-n", test.lines); code != 0 || out != test.want || errs != "" {
			t.Errorf("-n %s of %.20q: code %d, %.40q, %q", test.lines, test.content, code, out, errs)
		}
	}
}

func TestTheDaemonsLogIsFollowedIntoTheNextFile(t *testing.T) {
	t.Run("watched", func(t *testing.T) { followIntoTheNextFile(t, followFile) })
	t.Run("polled", func(t *testing.T) {
		followIntoTheNextFile(t, func(path string) *fileFollower {
			f := &fileFollower{path: path}
			f.poll()
			return f
		})
	})
}

func followIntoTheNextFile(t *testing.T, begin func(path string) *fileFollower) {
	path := filepath.Join(t.TempDir(), "agboxd.log")
	add := func(text string) {
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err == nil {
			_, err = file.WriteString(text)
		}
		if err != nil || file.Close() != nil {
			t.Fatal(err)
		}
	}
	want := ""
	lines := make(chan string, 10)
	out := &syncBuffer{}
	out.wrote = func() { lines <- out.String() }
	say := func(text string) {
		add(text)
		for want += text; <-lines != want; {
		}
	}
	add("too early\n")
	add("before\n")
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	last := uint64(1)
	changes := begin(path)
	defer changes.close()
	go func() { ended <- showFile(ctx, out, path, &last, changes) }()
	for want = "before\n"; <-lines != want; {
	}
	for i := range 2 {
		say(fmt.Sprintf("line %d\n", i))
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
		say(fmt.Sprintf("in file %d\n", i))
	}
	end()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The database of the daemon is in the folder of its log, and written often.
func TestOnlyChangesOfTheFileWakeItsFollower(t *testing.T) {
	events, errs := make(chan fsnotify.Event, 9), make(chan error, 1)
	f := &fileFollower{path: "/data/agboxd.log", events: events, lost: errs}
	defer f.close()
	next := func(what string, happened ...fsnotify.Event) {
		t.Helper()
		for _, e := range happened {
			events <- e
		}
		if err := f.next(t.Context()); err != nil || len(events) != 0 {
			t.Errorf("%s: %v, %d events are left", what, err, len(events))
		}
	}
	next("it was written", fsnotify.Event{Name: "/data/ids.db", Op: fsnotify.Write}, fsnotify.Event{Name: "/data/agboxd.log.1", Op: fsnotify.Create},
		fsnotify.Event{Name: "/data/agboxd.log", Op: fsnotify.Chmod}, fsnotify.Event{Name: "/data/agboxd.log", Op: fsnotify.Write})
	next("it was made", fsnotify.Event{Name: "/data/agboxd.log", Op: fsnotify.Rename}, fsnotify.Event{Name: "/data/agboxd.log", Op: fsnotify.Create})
	errs <- fsnotify.ErrEventOverflow
	next("events were lost")
	next("the folder was removed", fsnotify.Event{Name: "/data", Op: fsnotify.Remove})
	if f.tick == nil {
		t.Error("without its folder, the file is not polled")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.tick = nil
	if err := f.next(ctx); err == nil {
		t.Error("it goes on after the end")
	}
}
