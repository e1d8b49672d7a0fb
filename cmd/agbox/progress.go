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
	app   *app
	phase string
	// services is what was said of them last: what fails is started again and again.
	services string
	painted  bool
}

// phases says in words what the daemon is at.
var phases = map[string]string{
	"image":     "getting the image",
	"network":   "making the network",
	"container": "making the container",
	"start":     "starting",
	"copy":      "copying files in",
	"services":  "starting services",
}

// show takes one event of the sandbox.
func (p *progress) show(ev *agboxv1.SandboxEvent) {
	switch ev.GetEventType() {
	case agboxv1.EventType_SANDBOX_PREPARING:
		p.preparing(ev.GetSandboxPhase())
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED:
		name := printable(ev.GetService().GetName())
		p.put("service "+name, "starting service "+name, false)
	case agboxv1.EventType_EXEC_STARTED:
		if hook := ev.GetExec().GetHook(); hook != nil {
			list := "post_create"
			if hook.GetService() != "" {
				list = "post_start_on_primary of service " + printable(hook.GetService())
			}
			id := printable(ev.GetExec().GetExecId())
			p.put(id, fmt.Sprintf("running command %d of %s: agbox logs -f %s", hook.GetIndex()+1, list, id), true)
		}
	}
}

func (p *progress) preparing(d *agboxv1.SandboxPhaseDetails) {
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
	long := d.GetPhase() == "image" || d.GetPhase() == "copy" || d.GetReason() != ""
	if d.GetPhase() == "services" {
		long = line != p.services
		p.services = line
	}
	p.put(d.GetPhase(), line, long)
}

// put shows a line; long tells that what it says may take long.
func (p *progress) put(phase, line string, long bool) {
	if width := p.app.width(); width > 0 {
		// A line that wraps could not be painted over.
		fmt.Fprintf(p.app.stderr, "\r\x1b[K%s", cut(line, width-1))
		p.painted = true
		return
	}
	if long && phase != p.phase {
		p.app.say("%s", line)
	}
	p.phase = phase
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
