// Package gate has what the program of an agent can ask for (Ops), the shapes of the answers, and
// which calls it may still make: by the state of the agent, by how full the context of its
// incarnation is, and by what is left of its budget. Its functions are pure. The supervisor
// applies them without a daemon.
package gate

import "slices"

// The words for the context of an incarnation. A context only advances, in this order; it
// may leave words out.
const (
	// Healthy is the context of a new incarnation.
	Healthy = "HEALTHY"
	// Aging: the agent should prepare the handoff to its successor.
	Aging = "AGING"
	// Dying: only the final calls of tools are allowed.
	Dying = "DYING"
	// Draining: a final call was made.
	Draining = "DRAINING"
	// Dead: nothing is allowed; the incarnation is replaced.
	Dead = "DEAD"
)

var order = []string{Healthy, Aging, Dying, Draining, Dead}

// MayFollow reports whether a context that is one word may become another, or stay the
// same.
func MayFollow(from, to string) bool {
	at := slices.Index(order, from)
	return at >= 0 && slices.Index(order, to) >= at
}

// full is the percentage of a context that is used up.
const full = 100

// MaxPercent bounds a percentage. Above 100 all mean the same.
const MaxPercent = 1000

// Limits say when a context advances.
type Limits struct {
	// Aging and Dying are percentages, from 1 to 100.
	Aging, Dying uint32
	// FinalCalls is the number of calls of tools that a dying incarnation may make.
	FinalCalls uint32
}

// Default are the limits of an agent whose spec says nothing about them.
var Default = Limits{Aging: 70, Dying: 90, FinalCalls: 1}

// Context is the context of an incarnation. The zero value is that of a new one.
type Context struct {
	// Percent is the highest percentage that was reported.
	Percent uint32
	// Finals is the number of final calls that were allowed. Begun is how many of them have
	// begun, as far as the program has reported it.
	Finals, Begun uint32
	// LastTurn means that a turn is complete in which the context was dying, so the turn
	// that follows it is the last one. Finished means that this one is complete too.
	LastTurn, Finished bool
	// Drained means that the incarnation is drained, for whatever reason. StepOver means that
	// the step is complete since then that was under way.
	Drained, StepOver bool
}

// Fence says what the context allows.
type Fence uint8

// The fences.
const (
	// Open: every call is allowed.
	Open Fence = iota
	// Final: only final calls are.
	Final
	// Shut: no call of a tool is.
	Shut
	// Stopped: no call is, because the incarnation is drained and its step is complete.
	Stopped
)

// Word returns the word for the context.
func (c Context) Word(l Limits) string {
	switch {
	case c.Finished || c.Percent > full:
		return Dead
	case c.Finals > 0:
		return Draining
	case c.Percent >= l.Dying:
		return Dying
	case c.Percent >= l.Aging:
		return Aging
	}
	return Healthy
}

// Fence returns what the context allows, and how many final calls are left.
func (c Context) Fence(l Limits) (f Fence, left uint32) {
	switch word := c.Word(l); {
	case c.Drained && c.StepOver:
		return Stopped, 0
	case word == Healthy || word == Aging:
		return Open, l.FinalCalls
	case word == Dead || c.Finals >= l.FinalCalls:
		return Shut, 0
	}
	return Final, l.FinalCalls - c.Finals
}

// Reported returns the context after a percentage was reported. A lower one than before
// changes nothing.
func (c Context) Reported(percent uint32) Context {
	c.Percent = max(c.Percent, percent)
	return c
}

// Stepped returns the context after a step is complete, of which a turn is one. A drained
// incarnation finishes the step under way, with its calls, and begins no other one.
func (c Context) Stepped() Context {
	c.StepOver = c.Drained
	return c
}

// Turned returns the context after a turn is complete. The turn in which a context began to
// die is not the last one: the agent learns of it at the end of that turn, and finishes its
// work in the next. But it is the last one if it has made a final call.
func (c Context) Turned(l Limits) Context {
	c = c.Stepped()
	if word := c.Word(l); word == Healthy || word == Aging {
		return c
	}
	if c.LastTurn || c.Finals > 0 {
		c.Finished = true
	}
	c.LastTurn = true
	return c
}

// Called returns the context after somebody wants to call a tool, and whether it may. final
// means that the caller knows that it is one of the final calls. In the last turn every
// call is one.
func (c Context) Called(l Limits, final bool) (after Context, allowed bool) {
	switch f, _ := c.Fence(l); f {
	case Open:
		return c, true
	case Final:
		if final || c.LastTurn {
			c.Finals++
			return c, true
		}
	case Shut, Stopped:
	}
	return c, false
}

// Began returns the context after a call of a tool has begun, and whether it may: because
// every call is allowed, or because it is a final call for which Called has said yes.
func (c Context) Began(l Limits) (after Context, allowed bool) {
	f, _ := c.Fence(l)
	switch {
	case f == Open:
		return c, true
	case f == Stopped || c.Begun >= c.Finals || c.Word(l) == Dead:
		return c, false
	}
	c.Begun++
	return c, true
}
