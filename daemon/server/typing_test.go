package server

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	ifFree   = agboxv1.InputMode_INPUT_MODE_IF_FREE
	takeOver = agboxv1.InputMode_INPUT_MODE_TAKE_OVER
	shared   = agboxv1.InputMode_INPUT_MODE_SHARED
)

// wantTypists checks which of the seats may type.
func wantTypists(t *testing.T, ty *typing, all []*seat, want ...string) {
	t.Helper()
	may := make(map[string]bool)
	for _, w := range want {
		may[w] = true
	}
	for _, s := range all {
		if granted, _ := ty.may(s); granted != may[s.writer] {
			t.Errorf("%s may type: %v, want %v", s.writer, granted, may[s.writer])
		}
	}
}

// told reports whether a seat was woken, and resets that.
func told(s *seat) bool {
	select {
	case <-s.changed:
		return true
	default:
		return false
	}
}

func TestTheFirstTypesAndWhoWaitsLongestIsNext(t *testing.T) {
	var ty typing
	a, b, c := ty.enter("e", "a", ifFree, false), ty.enter("e", "b", ifFree, false), ty.enter("e", "c", ifFree, false)
	other := ty.enter("f", "other", ifFree, false)
	all := []*seat{a, b, c}
	wantTypists(t, &ty, all, "a")
	if granted, typist := ty.may(other); !granted || typist != "other" {
		t.Error("who types into another exec is in the way")
	}
	told(b)
	ty.leave(a)
	wantTypists(t, &ty, []*seat{b, c}, "b")
	if !told(b) || !told(c) {
		t.Error("nobody was told that somebody else types")
	}
	ty.leave(c)
	ty.leave(b)
	ty.leave(b)
	wantTypists(t, &ty, []*seat{b, c})
	ty.leave(other)
	if len(ty.execs) != 0 || ty.typist("e") != "" {
		t.Errorf("places are kept that nobody has: %v", ty.execs)
	}
}

func TestWhoTakesOverTypesAloneUntilLeaving(t *testing.T) {
	var ty typing
	a := ty.enter("e", "a", ifFree, false)
	s := ty.enter("e", "s", shared, false)
	all := []*seat{a, s}
	wantTypists(t, &ty, all, "a", "s")
	b := ty.enter("e", "b", takeOver, false)
	wantTypists(t, &ty, append(all, b), "b")
	if !told(a) || !told(s) {
		t.Error("who lost the right was not told")
	}
	d := ty.enter("e", "d", shared, false)
	wantTypists(t, &ty, append(all, b, d), "b", "d")
	told(s)
	ty.leave(b)
	wantTypists(t, &ty, append(all, d), "d", "s")
	if !told(s) {
		t.Error("who shares was not told that it may type again")
	}
	ty.leave(d)
	ty.leave(s)
	wantTypists(t, &ty, []*seat{a}, "a")
}

func TestWhoSharesTypesBesideWhoIsNext(t *testing.T) {
	var ty typing
	a, s := ty.enter("e", "a", ifFree, false), ty.enter("e", "s", shared, false)
	b := ty.enter("e", "b", takeOver, false)
	ty.leave(b)
	wantTypists(t, &ty, []*seat{a, s}, "a", "s")
}

func TestWhoTypedBeforeARestartGetsItBack(t *testing.T) {
	for name, c := range map[string]struct {
		first     agboxv1.InputMode
		firstDid  bool
		wantFirst bool
	}{
		"from who came first":     {ifFree, false, false},
		"not from who took over":  {takeOver, false, true},
		"not from who typed too":  {ifFree, true, true},
		"beside somebody sharing": {shared, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			var ty typing
			first := ty.enter("e", "first", c.first, c.firstDid)
			typed := ty.enter("e", "typed", ifFree, true)
			if granted, _ := ty.may(first); granted != c.wantFirst {
				t.Errorf("the first may type: %v", granted)
			}
			if granted, _ := ty.may(typed); granted == c.wantFirst && c.first != shared {
				t.Errorf("who typed before may type: %v", granted)
			}
			ty.leave(typed)
			wantTypists(t, &ty, []*seat{first}, "first")
		})
	}
}

func TestTheSameWriterReplacesItsBrokenConnection(t *testing.T) {
	var ty typing
	old := ty.enter("e", "a", ifFree, false)
	b := ty.enter("e", "b", ifFree, false)
	again := ty.enter("e", "a", ifFree, true)
	if granted, _ := ty.may(again); !granted {
		t.Error("the new connection may not type")
	}
	if granted, _ := ty.may(old); granted {
		t.Error("the old one may")
	}
	ty.leave(old)
	if granted, _ := ty.may(b); granted {
		t.Error("the end of the old connection has given the right away")
	}
	ty.leave(again)
	wantTypists(t, &ty, []*seat{b}, "b")
}
