package ledger

import (
	"strings"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
)

const (
	revive = agboxv1.AgentRevival_AGENT_REVIVAL_REVIVE
	reap   = agboxv1.AgentRevival_AGENT_REVIVAL_REAP
	ask    = agboxv1.AgentRevival_AGENT_REVIVAL_ASK
)

// afterALoss says what an agent is a day after the container of its sandbox was removed, which is a
// sandbox of a user, by what it was then and what a user did. "lost" is what its --on-loss says:
// ABORTED with reap, else ORPHANED. A verb with ! before the word is refused. The words were written
// from what docs/agents.md promises.
const afterALoss = `
was                     | nothing   | resume     | approve | deny    | revive     | reap       | kill    | drain   | drain resume | pause   | pause approve
it worked               | lost      | !lost      | !lost   | !lost   | lost       | ABORTED    | ABORTED | PAUSED  | lost         | WAITING | lost
it was being drained and resumed | lost | !lost     | !lost   | !lost   | lost       | ABORTED    | ABORTED | PAUSED  | lost         | WAITING | lost
it was stopped          | lost      | !lost      | !lost   | !lost   | lost       | ABORTED    | ABORTED | PAUSED  | lost         | WAITING | lost
it had crashed          | lost      | !lost      | !lost   | !lost   | lost       | ABORTED    | ABORTED | PAUSED  | lost         | WAITING | lost
it was drained          | PAUSED    | lost       | !PAUSED | !PAUSED | !PAUSED    | !PAUSED    | ABORTED | PAUSED  | lost         | WAITING | lost
it idled                | IDLE      | lost       | !IDLE   | !IDLE   | !IDLE      | !IDLE      | ABORTED | PAUSED  | lost         | WAITING | lost
it idled, no program    | IDLE      | lost       | !IDLE   | !IDLE   | !IDLE      | !IDLE      | ABORTED | PAUSED  | lost         | WAITING | lost
it asked                | WAITING   | !WAITING   | lost    | lost    | !WAITING   | !WAITING   | ABORTED | WAITING | WAITING      | WAITING | lost
it asked, no program    | WAITING   | !WAITING   | lost    | lost    | !WAITING   | !WAITING   | ABORTED | WAITING | WAITING      | WAITING | lost
it asked, then drained  | WAITING   | WAITING    | PAUSED  | PAUSED  | !WAITING   | !WAITING   | ABORTED | WAITING | WAITING      | WAITING | PAUSED
it was approved         | lost      | !lost      | lost    | !lost   | lost       | ABORTED    | ABORTED | PAUSED  | lost         | WAITING | lost
nobody held it          | SUSPENDED | !SUSPENDED | !SUSPENDED | !SUSPENDED | !SUSPENDED | !SUSPENDED | ABORTED | PAUSED | SUSPENDED | WAITING | SUSPENDED
`

// lostSandbox is what an agent sees whose sandbox is FAILED, and what its rounds remember. One whose
// container is not gone can be started.
type lostSandbox struct {
	gone                       bool
	ensured                    int
	since, failedAt, ensuredAt time.Time
	now                        time.Time
	back                       bool
}

// settle does the rounds of an agent until nothing more follows within a day.
func (s *lostSandbox) settle(t *testing.T, l *Ledger, id string) {
	t.Helper()
	until := s.now.Add(24 * time.Hour)
	for range 5000 {
		a := now(t, l, id)
		seen := agents.Seen{Sandbox: agents.SandboxFailed, Gone: s.gone, Ensured: s.ensured, EnsuredAt: s.ensuredAt, PauseMark: a.PauseMark(), FailedSince: s.since, FailedAt: s.failedAt}
		if s.back {
			seen = agents.Seen{Sandbox: agents.SandboxReady, PauseMark: a.PauseMark()}
		}
		if a.Incarnation != nil {
			seen.Exec = agents.ExecRunning
		}
		switch step := agents.Next(a.Record, seen, agents.RulesOf(a.Spec), s.now); step.Do {
		case agents.EnsureSandbox:
			if s.ensuredAt, s.failedAt, s.back = s.now, s.now, !s.gone; !a.Unasked() {
				s.ensured++
			}
		case agents.Emit:
			if step.Event.GetPause().GetReason() == agboxv1.PauseReason_PAUSE_REASON_ORPHANED {
				s.ensured = 0
			}
			emitAgent(t, l, a.Record, step.Event)
		case agents.Drain:
			endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: step.End, DrainedFor: step.Pause})
		case agents.Rest:
			if step.Wake.IsZero() || step.Wake.After(until) || a.Incarnation != nil {
				return
			}
			s.now = step.Wake
		default:
			t.Fatalf("agent %s: the step is %s", id, step.Do)
		}
	}
	t.Fatalf("agent %s does not come to rest", id)
}

// losses bring an agent that works into a state, by its name in the table. The container is there.
func losses(t *testing.T, l *Ledger) map[string]func(id string) {
	ends := func(id string, kind agboxv1.IncarnationEndKind, of agboxv1.PauseReason) {
		endIncarnation(t, l, now(t, l, id), &agboxv1.IncarnationEnd{Kind: kind, ExitCode: 1, DrainedFor: of})
		a := now(t, l, id)
		emitAgent(t, l, a.Record, agents.Ending(a.Record, agents.RulesOf(a.Spec)))
	}
	drained, must := agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED, func(_ Agent, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	drain := func(id string) {
		must(l.RequestDrain(t.Context(), id))
		settleAgent(t, l, id)
	}
	pause := func(id string) { must(l.PauseAgent(t.Context(), id, "May I?")) }
	return map[string]func(id string){
		"it worked":      func(string) {},
		"it was stopped": func(id string) { ends(id, drained, forDrain) },
		"it had crashed": func(id string) { ends(id, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, 0) },
		"it was drained": drain,
		"it was being drained and resumed": func(id string) {
			must(l.RequestDrain(t.Context(), id))
			must(l.WakeAgent(t.Context(), id))
		},
		"it idled":             func(id string) { pausedBy(t, l, now(t, l, id), forIdle) },
		"it idled, no program": func(id string) { pausedBy(t, l, now(t, l, id), forIdle); ends(id, drained, forIdle) },
		"it asked":             pause,
		"it asked, no program": func(id string) { pause(id); ends(id, drained, forIdle) },
		"it asked, then drained": func(id string) {
			pause(id)
			drain(id)
		},
		"it was approved": func(id string) { pause(id); must(l.ApproveAgent(t.Context(), id, approved, "")) },
		"nobody held it": func(id string) {
			must(l.CloseHold(t.Context(), id, "client:c", ""))
			settleAgent(t, l, id)
		},
	}
}

// verbs are what a user can do about an agent.
func verbs(t *testing.T, l *Ledger) map[string]func(id string) (Agent, error) {
	return map[string]func(id string) (Agent, error){
		"nothing": func(id string) (Agent, error) { return now(t, l, id), nil },
		"resume":  func(id string) (Agent, error) { return l.WakeAgent(t.Context(), id) },
		"approve": func(id string) (Agent, error) { return l.ApproveAgent(t.Context(), id, approved, "") },
		"deny":    func(id string) (Agent, error) { return l.ApproveAgent(t.Context(), id, denied, "") },
		"revive": func(id string) (Agent, error) {
			return l.ResolveAgent(t.Context(), id, agboxv1.AgentVerdict_AGENT_VERDICT_REVIVE)
		},
		"reap": func(id string) (Agent, error) {
			return l.ResolveAgent(t.Context(), id, agboxv1.AgentVerdict_AGENT_VERDICT_REAP)
		},
		"kill":  func(id string) (Agent, error) { return l.RequestKill(t.Context(), id, &agboxv1.AgentKill{}) },
		"drain": func(id string) (Agent, error) { return l.RequestDrain(t.Context(), id) },
		"pause": func(id string) (Agent, error) { return l.PauseAgent(t.Context(), id, "May I go on?") },
	}
}

// cells are the cells of a table, by row and column.
func cells(table string) (rows, columns []string, cell map[[2]string]string) {
	cell = make(map[[2]string]string)
	for i, line := range strings.Split(strings.TrimSpace(table), "\n") {
		parts := strings.Split(line, "|")
		for n := range parts {
			parts[n] = strings.TrimSpace(parts[n])
		}
		if i == 0 {
			columns = parts[1:]
			continue
		}
		rows = append(rows, parts[0])
		for n, column := range columns {
			cell[[2]string{parts[0], column}] = strings.ReplaceAll(parts[n+1], "WAITING", "WAITING_FOR_APPROVAL")
		}
	}
	return rows, columns, cell
}

// TestOnLossDecidesWhatALossMeans loses the container in each state, for each --on-loss, and lets a
// user do each thing. No agent is FAILED, and whoever is ORPHANED goes on with the container.
func TestOnLossDecidesWhatALossMeans(t *testing.T) {
	rows, columns, want := cells(afterALoss)
	for _, was := range rows {
		t.Run(was, func(t *testing.T) {
			t.Parallel()
			for _, onLoss := range []agboxv1.AgentRevival{revive, reap, ask} {
				l := fresh(t)
				ready(t, l, "s")
				for _, column := range columns {
					row := lossRow{was: was, does: column, onLoss: onLoss, cell: want[[2]string{was, column}]}
					row.over = want[[2]string{was, "nothing"}] == "lost" && onLoss == reap
					row.try(t, l, &lostSandbox{gone: true})
					if onLoss != revive {
						row.try(t, l, new(lostSandbox))
					}
				}
			}
		})
	}
}

// lossRow is a cell of the table. over means that the loss has ended the agent before a user does
// anything.
type lossRow struct {
	was, does, cell string
	onLoss          agboxv1.AgentRevival
	over            bool
}

// word is how the agent is shown at the end.
func (r lossRow) word() string {
	switch word := strings.TrimPrefix(r.cell, "!"); {
	case r.over, word == "lost" && r.onLoss == reap:
		return "ABORTED"
	case word == "lost":
		return "ORPHANED"
	default:
		return word
	}
}

// lose makes an agent that was so, and takes its container. lost means that its program was lost.
func (r lossRow) lose(t *testing.T, l *Ledger, id string) (lost bool) {
	n := agentOf(id, "", "s")
	n.Spec.Revival = r.onLoss
	n.Spec.Lifetime, n.Holder, n.Linger = agboxv1.AgentLifetime_AGENT_LIFETIME_HELD, "client:c", time.Second
	spawn(t, l, n)
	settleAgent(t, l, id)
	losses(t, l)[r.was](id)
	a := now(t, l, id)
	if a.Incarnation != nil {
		endIncarnation(t, l, a, &agboxv1.IncarnationEnd{Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST})
	}
	return a.Incarnation != nil
}

// try tries one cell. If the container is not gone, only what was lost with it is to be decided about.
func (r lossRow) try(t *testing.T, l *Ledger, box *lostSandbox) {
	t.Helper()
	id := strings.ReplaceAll(r.does, " ", "-")
	if !box.gone {
		id += "-startable"
	}
	if lost := r.lose(t, l, id); !lost && !box.gone {
		return
	}
	box.now = l.now()
	box.since, box.failedAt = box.now, box.now
	box.settle(t, l, id)
	for _, verb := range strings.Fields(r.does) {
		shown := now(t, l, id).Word()
		_, err := verbs(t, l)[verb](id)
		if !r.over && (err != nil) != strings.HasPrefix(r.cell, "!") || err != nil && !strings.Contains(err.Error(), " is "+shown) {
			t.Errorf("%+v, %+v: it is shown as %s, and the answer is %v", r, box, shown, err)
		}
		box.settle(t, l, id)
	}
	switch a := now(t, l, id); {
	case !box.gone && r.does == "revive" && r.cell == "lost" && !r.over:
		if a.Incarnation == nil {
			t.Errorf("%+v, %+v: it is %s", r, box, a.Word())
		}
		return
	case a.Word() != r.word():
		t.Errorf("%+v, %+v: it is %s (%v, %v); want %s", r, box, a.Word(), a.Pause, a.Done, r.word())
	case a.Word() == "ORPHANED":
		r.comesBack(t, l, id, box)
	}
}

// comesBack brings the container back: it goes on, with ask once somebody has decided.
func (r lossRow) comesBack(t *testing.T, l *Ledger, id string, box *lostSandbox) {
	t.Helper()
	box.back = true
	if box.settle(t, l, id); (now(t, l, id).Incarnation != nil) != (r.onLoss == revive) {
		t.Errorf("%+v: the container is back, and it is %s", r, now(t, l, id).Word())
	}
	if r.onLoss == revive {
		return
	}
	for range 2 {
		if _, err := l.ResolveAgent(t.Context(), id, agboxv1.AgentVerdict_AGENT_VERDICT_REVIVE); err != nil {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if box.settle(t, l, id); now(t, l, id).Incarnation == nil {
		t.Errorf("%+v: it was revived, and is %s", r, now(t, l, id).Word())
	}
}
