package agents

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestAPauseThatSomebodyHasEndedIsNoWait says in words what a pause is, before and after somebody
// has ended it, while the program runs and after its end.
func TestAPauseThatSomebodyHasEndedIsNoWait(t *testing.T) {
	const (
		yes  = agboxv1.AgentApproval_AGENT_APPROVAL_APPROVED
		no   = agboxv1.AgentApproval_AGENT_APPROVAL_DENIED
		idle = agboxv1.PauseReason_PAUSE_REASON_IDLE
	)
	ended := &agboxv1.IncarnationEnd{Kind: drained, DrainedFor: idle}
	drain := func(h *history) *history {
		h.add(wishOf(forRequest)).endWith(&agboxv1.IncarnationEnd{Kind: drained, DrainedFor: forRequest})
		return h.add(Ending(h.r, rules())).add(pauseOf(forRequest))
	}
	for _, row := range []struct {
		is, word, note string
		h              *history
	}{
		{"asked", "WAITING_FOR_APPROVAL", "PAUSE_REASON_APPROVAL", working(t).add(pauseOf(forApproval))},
		{"asked, drained", "WAITING_FOR_APPROVAL", "PAUSE_REASON_APPROVAL Besides: PAUSE_REASON_REQUEST", drain(working(t).add(pauseOf(forApproval)))},
		{"approved", "PAUSED", "It was approved, and its program was asked to go on.", working(t).add(pauseOf(forApproval)).add(wakeOf(yes))},
		{"denied", "PAUSED", "It was denied, and its program was asked to plan anew.", working(t).add(pauseOf(forApproval)).add(wakeOf(no))},
		{"approved, ended", "PAUSED", "It was approved, and goes on in its next incarnation.", working(t).add(pauseOf(forApproval)).endWith(ended).add(pauseOf(forApproval)).add(wakeOf(yes))},
		{"approved, drained", "PAUSED", "It was approved. Besides: PAUSE_REASON_REQUEST", drain(working(t).add(pauseOf(forApproval))).add(wakeOf(yes))},
		{"approved, asked again", "WAITING_FOR_APPROVAL", "PAUSE_REASON_APPROVAL", working(t).add(pauseOf(forApproval)).add(wakeOf(yes)).add(pauseOf(forApproval))},
		{"idle", "IDLE", "PAUSE_REASON_IDLE", working(t).add(pauseOf(idle))},
		{"idle, woken", "PAUSED", "It was woken, and its program was asked to go on.", working(t).add(pauseOf(idle)).add(wakeOf(0))},
		{"suspended", "SUSPENDED", "PAUSE_REASON_UNHELD", working(t).endWith(ended).add(pauseOf(agboxv1.PauseReason_PAUSE_REASON_UNHELD))},
		{"suspended, held", "PAUSED", "It was woken, and goes on in its next incarnation.", working(t).endWith(ended).add(pauseOf(agboxv1.PauseReason_PAUSE_REASON_UNHELD)).add(wakeOf(0))},
		{"retrying", "RETRYING", "PAUSE_REASON_CRASH", working(t).endWith(ended).add(pauseOf(agboxv1.PauseReason_PAUSE_REASON_CRASH)).begun()},
	} {
		if r := row.h.r; r.Word() != row.word || r.PauseNote() != row.note {
			t.Errorf("%s: it is %s: %s; want %s: %s", row.is, r.Word(), r.PauseNote(), row.word, row.note)
		}
	}
}
