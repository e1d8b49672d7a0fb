package main

import (
	"fmt"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// progress shows on stderr how a sandbox comes up. A terminal gets one line
// that is painted over; anything else gets one plain line for each phase that may
// take long.
type progress struct {
	app     *app
	phase   string
	painted bool
}

// phases says in words what the daemon is at.
var phases = map[string]string{
	"image":     "getting the image",
	"network":   "making the network",
	"container": "making the container",
	"start":     "starting",
	"copy":      "copying files in",
}

// show takes one event of the sandbox.
func (p *progress) show(ev *agboxv1.SandboxEvent) {
	if ev.GetEventType() != agboxv1.EventType_SANDBOX_PREPARING {
		return
	}
	d := ev.GetSandboxPhase()
	line, ok := phases[d.GetPhase()]
	if !ok {
		line = printable(d.GetPhase())
	}
	if d.GetReason() != "" {
		line += ": " + printable(d.GetReason())
	}
	if d.GetBytesTotal() > 0 {
		line = bar(d.GetBytesDone(), d.GetBytesTotal()) + " " + line
	}
	if width := p.app.width(); width > 0 {
		// A line that wraps could not be painted over.
		fmt.Fprintf(p.app.stderr, "\r\x1b[K%s", cut(line, width-1))
		p.painted = true
		return
	}
	if d.GetPhase() == p.phase {
		return
	}
	p.phase = d.GetPhase()
	if long := d.GetPhase() == "image" || d.GetPhase() == "copy" || d.GetReason() != ""; long {
		p.app.say("%s", line)
	}
}

// clear takes the painted line away.
func (p *progress) clear() {
	if p.painted {
		fmt.Fprint(p.app.stderr, "\r\x1b[K")
		p.painted = false
	}
}

// barWidth is the width of a bar in characters.
const barWidth = 20

// bar shows how much of something is done.
func bar(done, total uint64) string {
	full := int(min(done, total) * barWidth / max(total, 1))
	return "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "]"
}
