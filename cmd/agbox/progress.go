package main

import (
	"fmt"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// progress shows on stderr how a sandbox starts. On a terminal it overwrites one line.
// Elsewhere it prints a line for each phase that may take long.
type progress struct {
	app *app
	// logs reads the output of hooks; nil shows none.
	logs  logReader
	phase string
	// services is the last line about services: failing services are restarted often,
	// and the same line is not printed twice.
	services string
	painted  bool
}

// phases are the words for the daemon's phases.
var phases = map[string]string{
	"image":     "getting the image",
	"build":     "building the image",
	"network":   "creating the network",
	"container": "creating the container",
	"start":     "starting",
	"copy":      "copying files in",
	"services":  "starting services",
}

// show takes one event of the sandbox.
func (p *progress) show(ev *agboxv1.SandboxEvent) {
	switch ev.GetEventType() {
	case agboxv1.EventType_SANDBOX_PREPARING:
		p.preparing(ev.GetSandboxPhase())
	case agboxv1.EventType_SANDBOX_FILES_COPIED:
		if text := ignoredWords(ev.GetSandboxPhase()); text != "" {
			p.clear()
			p.app.say("%s", text)
		}
	case agboxv1.EventType_SANDBOX_SERVICE_STARTED:
		name := printable(ev.GetService().GetName())
		p.put("service "+name, "starting service "+name, false)
	case agboxv1.EventType_EXEC_STARTED:
		if hook := ev.GetExec().GetHook(); hook != nil {
			p.hookStarted(ev.GetExec().GetExecId(), hook)
		}
	case agboxv1.EventType_EXEC_FINISHED, agboxv1.EventType_EXEC_FAILED:
		if ev.GetExec().GetHook() != nil {
			p.hookEnded(ev.GetExec())
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

// shownIgnored is how many ignored files are named.
const shownIgnored = 4

// ignoredWords says which files were copied although a .gitignore names them; "" if none.
func ignoredWords(d *agboxv1.SandboxPhaseDetails) string {
	n := int(d.GetIgnoredFiles())
	if n == 0 {
		return ""
	}
	names := d.GetIgnoredNames()[:min(len(d.GetIgnoredNames()), shownIgnored)]
	for i := range names {
		names[i] = printable(names[i])
	}
	return fmt.Sprintf("The copy has %s, %s among them. --tracked copies only what git tracks, --use-gitignore leaves them out.",
		plural(n, "file that a .gitignore names", "files that a .gitignore names"), strings.Join(names, ", "))
}

// put shows a line. long means that the phase may take long.
func (p *progress) put(phase, line string, long bool) {
	if width := p.app.width(); width > 0 {
		// A line that wraps could not be overwritten.
		fmt.Fprintf(p.app.stderr, "\r\x1b[K%s", cut(line, width-1))
		p.painted = true
		return
	}
	if long && phase != p.phase {
		p.app.say("%s", line)
	}
	p.phase = phase
}

// clear erases the line.
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
