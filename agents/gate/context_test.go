package gate

import (
	"slices"
	"testing"
	"testing/quick"
)

func TestTheContextOfAnIncarnation(t *testing.T) {
	limits := Default
	turn := func(c Context) Context { return c.Turned(limits) }
	call := func(c Context) Context { c, _ = c.Called(limits, false); return c }
	final := func(c Context) Context { c, _ = c.Called(limits, true); return c }
	drain := func(c Context) Context { c.Drained = true; return c }
	step := func(c Context) Context { return c.Stepped() }
	at := func(percent uint32) func(Context) Context {
		return func(c Context) Context { return c.Reported(percent) }
	}
	for _, row := range []struct {
		name  string
		steps []func(Context) Context
		word  string
		fence Fence
		left  uint32
	}{
		{"new", nil, Healthy, Open, 1},
		{"below the first threshold", []func(Context) Context{at(69), turn, call}, Healthy, Open, 1},
		{"at the first threshold", []func(Context) Context{at(70)}, Aging, Open, 1},
		{"it never goes back", []func(Context) Context{at(70), at(10), turn}, Aging, Open, 1},
		{"below the second threshold", []func(Context) Context{at(89), turn, turn, call, final}, Aging, Open, 1},
		{"a jump leaves AGING out", []func(Context) Context{at(60), at(92)}, Dying, Final, 1},
		{"a call in the turn in which it began to die", []func(Context) Context{at(90), call}, Dying, Final, 1},
		{"that turn ends", []func(Context) Context{at(90), turn}, Dying, Final, 1},
		{"a call in the last turn", []func(Context) Context{at(90), turn, call}, Draining, Shut, 0},
		{"a final call before the last turn", []func(Context) Context{at(90), final}, Draining, Shut, 0},
		{"a second call", []func(Context) Context{at(90), turn, call, call, final}, Draining, Shut, 0},
		{"the last turn ends", []func(Context) Context{at(90), turn, call, turn}, Dead, Shut, 0},
		{"the last turn ends without a call", []func(Context) Context{at(90), turn, turn}, Dead, Shut, 0},
		{"the turn of an early final call ends", []func(Context) Context{at(90), final, turn}, Dead, Shut, 0},
		{"exactly full", []func(Context) Context{at(100)}, Dying, Final, 1},
		{"more than full", []func(Context) Context{at(101)}, Dead, Shut, 0},
		{"dead for ever", []func(Context) Context{at(101), at(5), turn, final, call}, Dead, Shut, 0},
		{"drained in a step", []func(Context) Context{turn, drain, call}, Healthy, Open, 1},
		{"drained, and its step is complete", []func(Context) Context{drain, call, step}, Healthy, Stopped, 0},
		{"drained, and its turn is complete", []func(Context) Context{at(75), drain, turn, call}, Aging, Stopped, 0},
		{"drained while it is dying", []func(Context) Context{at(90), turn, drain, call}, Draining, Shut, 0},
		{"a step is complete", []func(Context) Context{step, call, step}, Healthy, Open, 1},
	} {
		var c Context
		for _, act := range row.steps {
			c = act(c)
		}
		fence, left := c.Fence(limits)
		if c.Word(limits) != row.word || fence != row.fence || left != row.left {
			t.Errorf("%s: %s, fence %d, %d left; want %s, %d, %d", row.name, c.Word(limits), fence, left, row.word, row.fence, row.left)
		}
	}
}

func TestACallBeginsOnceForEachYes(t *testing.T) {
	var c Context
	began := func(want bool, when string) {
		t.Helper()
		after, allowed := c.Began(Default)
		if c = after; allowed != want {
			t.Errorf("%s: %v; want %v", when, allowed, want)
		}
	}
	began(true, "healthy")
	began(true, "healthy, again")
	c = c.Reported(95)
	began(false, "dying, nobody was asked")
	c, _ = c.Called(Default, true)
	began(true, "the final call")
	began(false, "the final call, again")
	c = c.Turned(Default)
	began(false, "dead")
	late, _ := Context{Percent: 95}.Called(Default, true)
	if _, allowed := late.Reported(101).Began(Default); allowed {
		t.Error("a final call begins although the context is dead by now")
	}
	late.Drained = true
	if _, allowed := late.Stepped().Began(Default); allowed {
		t.Error("a final call begins although its step is complete")
	}
}

// TestAContextOnlyAdvances runs random reports, turns and calls.
func TestAContextOnlyAdvances(t *testing.T) {
	holds := func(aging, dying, finals uint8, acts []uint16) bool {
		l := Limits{Aging: 1 + uint32(aging)%100, FinalCalls: 1 + uint32(finals)%4}
		l.Dying = max(l.Aging, 1+uint32(dying)%100)
		var c Context
		highest, fenced := uint32(0), uint32(0) // fenced counts the calls since it began to die
		for _, act := range acts {
			before := c
			var allowed bool
			switch act % 6 {
			case 0:
				percent := uint32(act/6) % 120
				highest = max(highest, percent)
				c = c.Reported(percent)
			case 1:
				c = c.Turned(l)
			case 2:
				c = c.Stepped()
			case 3:
				c.Drained = c.Drained || act%5 == 0
			default:
				c, allowed = c.Called(l, act%6 == 5)
			}
			from, to := before.Word(l), c.Word(l)
			if allowed && slices.Index(order, from) >= slices.Index(order, Dying) {
				fenced++
			}
			switch {
			case !MayFollow(from, to), c.Percent != highest, fenced > l.FinalCalls,
				allowed && (from == Dead || before.Drained && before.StepOver), before.StepOver && !c.StepOver, to == Dead && highest < l.Dying, highest > full && to != Dead:
				t.Logf("%+v: act %d leads from %s %+v to %s %+v", l, act, from, before, to, c)
				return false
			}
		}
		return true
	}
	if err := quick.Check(holds, &quick.Config{MaxCount: 2000}); err != nil {
		t.Error(err)
	}
}

func TestWordsFollowEachOtherInOrder(t *testing.T) {
	for i, from := range order {
		for j, to := range order {
			if MayFollow(from, to) != (j >= i) {
				t.Errorf("%s after %s: %v", to, from, MayFollow(from, to))
			}
		}
		if MayFollow(from, "") || MayFollow("", from) {
			t.Errorf("no word may follow %s, or be followed by it", from)
		}
	}
}
