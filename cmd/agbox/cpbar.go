package main

import (
	"fmt"
	"time"

	"github.com/agbox/agbox/client"
)

// paintEvery is the shortest time between two updates of a progress line.
const paintEvery = 100 * time.Millisecond

// copyBar shows the progress of a copy on a terminal. Without one it prints nothing.
type copyBar struct {
	app     *app
	width   int
	source  string
	files   int64
	bytes   int64
	began   time.Time
	painted time.Time
}

func newCopyBar(a *app, quiet bool) *copyBar {
	b := &copyBar{app: a, began: a.now()}
	if !quiet {
		b.width = a.width()
	}
	return b
}

// begin sets the source that is copied now.
func (b *copyBar) begin(source string) { b.source = source }

// add adds to the counts. Only one goroutine at a time may call it.
func (b *copyBar) add(files, bytes int64, restarted bool) {
	if restarted {
		b.files, b.bytes = 0, 0
	}
	b.files += files
	b.bytes += bytes
	if b.width <= 0 {
		return
	}
	now := b.app.now()
	if now.Sub(b.painted) < paintEvery || now.Sub(b.began) < paintEvery {
		return
	}
	b.painted = now
	line := fmt.Sprintf("%s  %s", byteCount(b.bytes), rate(b.bytes, now.Sub(b.began)))
	if b.files > 0 {
		line = fmt.Sprintf("%s  %s", plural(int(b.files), "file", "files"), line)
	}
	// A line that wraps could not be overwritten.
	fmt.Fprintf(b.app.stderr, "\r\x1b[K%s", cut(line+"  "+printable(b.source), b.width-1))
}

// clear erases the line.
func (b *copyBar) clear() {
	if !b.painted.IsZero() {
		fmt.Fprint(b.app.stderr, "\r\x1b[K")
		b.painted = time.Time{}
	}
}

// end prints what was copied, on a terminal only.
func (b *copyBar) end(done client.Copied) {
	if b.width > 0 {
		took := b.app.now().Sub(b.began)
		b.app.say("Copied %s, %s, in %.1f s (%s).", plural(int(done.Files), "file", "files"), byteCount(done.Bytes), took.Seconds(), rate(done.Bytes, took))
	}
}

func rate(bytes int64, took time.Duration) string {
	if took <= 0 {
		return "-"
	}
	return byteCount(int64(float64(bytes)/took.Seconds())) + "/s"
}
