package agents

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// A SIGKILL that agbox did not send is retried as if memory had run out, because the kernel
// does not always say so. The sentences must not claim it.
func TestOnlyTheKernelsWordMakesASIGKILLALackOfMemory(t *testing.T) {
	bySignal := &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 137, Signal: 9, Spoke: true}
	byCode := &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 137, Spoke: true}
	counted := &agboxv1.IncarnationEnd{Kind: exited, ExitCode: 137, Signal: 9, OomKilled: true, Spoke: true}
	for _, row := range []struct {
		name         string
		first, last  *agboxv1.IncarnationEnd
		paused, dead string
	}{
		{
			"SIGKILL", bySignal, bySignal, "SIGKILL ended it, which agbox did not send.",
			"SIGKILL, which agbox did not send, ended each of 2 attempts",
		},
		{
			"exit code of SIGKILL", byCode, byCode, "It exited with 137, as after SIGKILL.",
			"SIGKILL, which agbox did not send, ended each of 2 attempts",
		},
		{
			"counted by the kernel once of two times", counted, bySignal, "It was killed for lack of memory.",
			"SIGKILL, which agbox did not send, ended each of 2 attempts",
		},
		{
			"the same in the other order", bySignal, counted, "SIGKILL ended it, which agbox did not send.",
			"SIGKILL, which agbox did not send, ended each of 2 attempts",
		},
		{
			"counted by the kernel each time", counted, counted, "It was killed for lack of memory.",
			"Memory ran out on each of 2 attempts",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := working(t).endWith(row.first)
			pause := Ending(h.r, rules())
			if got := pause.GetPause().GetMessage(); got != row.paused {
				t.Errorf("after the first end it says %q; want %q", got, row.paused)
			}
			if got := pause.GetPause().GetStrategy(); got != ReducedFootprint {
				t.Errorf("the next attempt has the strategy %q; want %q", got, ReducedFootprint)
			}
			h.add(pause).begun().endWith(row.last)
			end := Ending(h.r, rules())
			if got := end.GetDone().GetMessage(); end.GetState() != DeadLetter || !strings.HasPrefix(got, row.dead) {
				t.Errorf("after the second end it is %s and says %q; want DEAD_LETTER and %q", answer(end), got, row.dead)
			}
		})
	}
}

func TestASIGKILLOfAgboxIsNotCalledAStrangers(t *testing.T) {
	h := working(t).endWith(&agboxv1.IncarnationEnd{Kind: killed, ExitCode: 137, Signal: 9, Spoke: true})
	if got := Ending(h.r, rules()).GetPause().GetMessage(); got != "Signal 9 ended it." {
		t.Errorf("an exec that a user has killed says %q", got)
	}
}
