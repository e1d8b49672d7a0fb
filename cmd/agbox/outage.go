package main

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/agbox/agbox/client"
)

// outageInput bounds the keys that are kept while the daemon is gone, in bytes.
const outageInput = 64 << 10

// outageNews tells the user on a terminal when the daemon is gone and when it is back, and
// what becomes of the keys that are typed meanwhile. Without a terminal it tells nothing.
type outageNews struct {
	// line shows a line of text on the terminal, if there is one, after the sequence begin.
	line func(begin, text string)
	// midLine is true if the last output on the terminal was not a complete line.
	midLine atomic.Bool

	// mu guards the fields below.
	mu sync.Mutex
	// show tells of an outage instead of lines; nil if no command has the terminal.
	show func(o client.Outage, text string)
	// session gets the keys; nil if nothing is typed.
	session *client.Session
	// away is true in an outage.
	away bool
	// mark counts the input that had been typed at the end of the last outage.
	mark uint64
	// refused counts the bytes that were typed when no more were kept, until it is told.
	refused int
}

// shows makes outages go to show; nil makes them go to lines again.
func (n *outageNews) shows(show func(client.Outage, string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.show = show
}

// types says which session gets what is typed.
func (n *outageNews) types(s *client.Session) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.session = s
}

// tell handles news of the client.
func (n *outageNews) tell(o client.Outage) {
	n.mu.Lock()
	n.away = !o.Over
	show, text := n.show, outageText(o)
	switch typing := n.session != nil && n.session.MayType(); {
	case o.Over && n.session != nil:
		n.mark = n.session.Input().Written
	case typing && o.Failed == nil:
		text += " What you type is kept."
	}
	if o.Over && n.refused > 0 {
		text += " " + n.refusedLocked()
	}
	n.mu.Unlock()
	if show != nil {
		show(o, text)
		return
	}
	begin := "\r\x1b[K" // over a line that shows progress
	if n.midLine.Swap(false) {
		begin = "\r\n"
	}
	n.line(begin, text)
}

// refusedLocked says that keys were refused, and forgets it.
func (n *outageNews) refusedLocked() string {
	text := fmt.Sprintf("More was typed than is kept: %s not delivered.", plural(n.refused, "byte was", "bytes were"))
	n.refused = 0
	return text
}

// outageText is one line about an outage.
func outageText(o client.Outage) string {
	switch {
	case o.Over:
		return "The daemon is back."
	case o.Failed != nil:
		why, _, _ := strings.Cut(o.Failed.Error(), "\n")
		return "The daemon could not be started, and is waited for: " + printable(why)
	case o.Starting:
		return "The daemon is gone. Starting it."
	case o.Stopped:
		return fmt.Sprintf("The daemon has stopped. Waiting %v for `agbox daemon start`.", o.Wait.Round(time.Second))
	}
	return fmt.Sprintf("The daemon is gone. Waiting %v for `agbox daemon start`.", o.Wait.Round(time.Second))
}

// wrote notes what was written to the terminal.
func (n *outageNews) wrote(data []byte) {
	if n != nil && len(data) > 0 {
		n.midLine.Store(data[len(data)-1] != '\n')
	}
}

// keep returns the part of typed keys that the session takes: all, except beyond
// outageInput in an outage.
func (n *outageNews) keep(keys []byte) []byte {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.away || n.session == nil {
		return keys
	}
	in, room := n.session.Input(), 0
	if waiting := in.Written - in.Acknowledged; n.refused == 0 && waiting < outageInput {
		room = min(len(keys), int(outageInput-waiting))
	}
	n.refused += len(keys) - room
	return keys[:room]
}

// undelivered says how much of what was typed did not reach the command; empty if all did.
// left means that the user left. When a command has ended, only what was typed in an outage
// counts: what is typed after its end never arrives.
func (n *outageNews) undelivered(left bool) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.session == nil {
		return ""
	}
	in := n.session.Input()
	until := n.mark
	if left {
		until = in.Written
	}
	sent := min(max(in.Sent, in.Acknowledged), until)
	lost := int(until-sent) + n.refused
	n.refused = 0
	unknown := 0
	if sent > in.Acknowledged {
		unknown = int(sent - in.Acknowledged)
	}
	return undeliveredText(lost, unknown)
}

func undeliveredText(lost, unknown int) string {
	switch {
	case lost > 0 && unknown > 0:
		return fmt.Sprintf("%s not delivered, and of %s it is unknown.", plural(lost, "typed byte was", "typed bytes were"), plural(unknown, "byte before that", "bytes before them"))
	case lost > 0:
		return fmt.Sprintf("%s not delivered.", plural(lost, "typed byte was", "typed bytes were"))
	case unknown > 0:
		return fmt.Sprintf("It is unknown whether the last %s delivered.", plural(unknown, "typed byte was", "typed bytes were"))
	}
	return ""
}
