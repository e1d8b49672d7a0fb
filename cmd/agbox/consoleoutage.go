package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/agbox/agbox/client"
)

// outage shows that the daemon is gone or back. A program that draws gets the text on the
// last row until it is told to draw again. Otherwise it is a line, and after the outage the
// incomplete line before it, such as a prompt, is shown again. Only one goroutine calls it
// at a time.
func (c *console) outage(ctx context.Context, o client.Outage, text string) {
	w := c.noticeWriter()
	if w == nil {
		return
	}
	if !c.screen.draws() {
		lead, tail := "", ""
		if c.screen.endLine() {
			lead = "\r\n"
		}
		if o.Over {
			tail = c.screen.lineAgain()
		}
		_ = c.put(ctx, w, []byte(lead+"agbox: "+text+"\r\n"+tail))
		return
	}
	if !o.Over {
		_ = c.put(ctx, w, []byte(c.statusLine("agbox: "+text)))
		return
	}
	if text == outageText(o) {
		text = "" // the row is free again, which says the same
	} else {
		text = "agbox: " + text
	}
	_ = c.put(ctx, w, []byte(c.statusLine(text)))
	c.redraw.Store(true)
	c.wakeRights()
}

// noticeWriter is where notices go: stderr or stdout, whichever is a terminal.
func (c *console) noticeWriter() io.Writer {
	switch {
	case c.app.width() > 0:
		return c.app.stderr
	case c.app.outputSize() != nil:
		return c.app.stdout
	}
	return nil
}

// statusLine is output that writes text on the last row and changes nothing else of the
// terminal's state. An empty text clears the row.
func (c *console) statusLine(text string) string {
	size := c.terminal.size()
	if size == nil {
		return ""
	}
	// The cursor with its modes is saved and restored; in between rows count from the top.
	row := fmt.Sprintf("\x1b7\x1b[?6l\x1b[%d;1H\x1b[0m", size.GetRows())
	if text == "" {
		return row + "\x1b[2K\x1b8"
	}
	width := max(1, int(size.GetColumns())-1) // the last column could wrap
	text = cut(text, width)
	return row + "\x1b[7m\x1b(B" + text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text))) + "\x1b[0m\x1b8"
}

// tellUndelivered tells what of the typed keys did not reach the command.
func (c *console) tellUndelivered(ctx context.Context, left bool) {
	if text := c.app.outages.undelivered(left); text != "" {
		c.teller(ctx).say("%s", text)
	}
}
