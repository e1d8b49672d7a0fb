package incarnations

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/ledger"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// observation is what an agent must know about a pause before it goes on. It is computed when
// it is asked for, from what was recorded when the pause began and from how things are now.
type observation struct {
	Observation uint64 `json:"observation"`
	AgentID     string `json:"agent_id"`
	// PausedAt is when the agent stopped working, AwayMs how long ago that is.
	PausedAt time.Time `json:"paused_at"`
	AwayMs   int64     `json:"away_ms"`
	Reason   string    `json:"reason"`
	Message  string    `json:"message"`
	// Approval is "APPROVED" or "DENIED" if it waited for one, and Answer what the person says.
	Approval string `json:"approval,omitempty"`
	Answer   string `json:"answer,omitempty"`
	// DigestMissing means that its program had saved no digest of the pause.
	DigestMissing bool `json:"digest_missing,omitempty"`
	agents.Changes
	// LeasesLost are the resources that the agent held when it was paused, and does not now.
	LeasesLost []string `json:"leases_lost"`
	// HeldMeanwhile are the resources that it held, holds or asks for and that others held.
	HeldMeanwhile []agents.Passed `json:"held_meanwhile"`
	// Messages is the number of messages that wait.
	Messages int `json:"messages"`
	// Left is what is left of the budget; it lacks what has no bound.
	Left map[string]uint64 `json:"left"`
	// Notices say what is not known.
	Notices []string `json:"notices"`
}

// observe makes the observation that the agent, which is woken, must take.
func (r *Runner) observe(ctx context.Context, a ledger.Agent) observation {
	p, now := a.Pause, r.now()
	o := observation{
		Observation: a.PendingObservation(), AgentID: a.ID, PausedAt: a.AwaySince.UTC(), AwayMs: now.Sub(a.AwaySince).Milliseconds(),
		Reason: strings.TrimPrefix(p.Reason.String(), "PAUSE_REASON_"), Message: p.Message,
		DigestMissing: a.DigestMissing(),
		Messages:      r.ledger.Unread(a.ID), Left: left(agents.RulesOf(a.Spec).Budget, r.taken(a)), Notices: []string{},
	}
	if approval, answer := a.Approval(); approval != agboxv1.AgentApproval_AGENT_APPROVAL_UNSPECIFIED {
		o.Approval, o.Answer = strings.TrimPrefix(approval.String(), "AGENT_APPROVAL_"), answer
	}
	before, after := agents.Picture{Surroundings: a.Away}, agents.Picture{Surroundings: r.ledger.Picture(a)}
	if a.Away == nil {
		o.Notices = append(o.Notices, "How the sandbox and its services were before the pause is not known.")
	}
	if err := r.look(ctx, a, &before, &after); err != nil {
		o.Notices = append(o.Notices, "The files and the limits were not compared: "+err.Error()+".")
	}
	o.Changes, o.LeasesLost = agents.Compare(before, after), agents.Lost(a.Away.GetLeases(), a.Holds)
	held, whole, err := r.ledger.HeldMeanwhile(ctx, a)
	if o.HeldMeanwhile = held; err != nil || !whole {
		o.Notices = append(o.Notices, "Who held its resources meanwhile is not known for the whole time.")
	}
	return o.bounded()
}

// maxObservation is the size of an observation, in bytes: the answer with it is one line.
const maxObservation = 48 << 10

// bounded leaves out parts of the longest list until the observation is small enough.
func (o observation) bounded() observation {
	for shortened := false; ; shortened = true {
		raw, err := json.Marshal(o)
		files, held, lost := len(o.Files), 2*len(o.HeldMeanwhile), len(o.LeasesLost)
		if err != nil || len(raw) <= maxObservation || files+held+lost == 0 {
			if shortened {
				o.Notices = append(o.Notices, "More has changed than is named here: look at everything that the work depends on.")
			}
			return o
		}
		switch {
		case files >= max(held, lost):
			o.Files = o.Files[:files/2]
		case held >= lost:
			o.HeldMeanwhile = o.HeldMeanwhile[:held/4]
		default:
			o.LeasesLost = o.LeasesLost[:lost/2]
		}
	}
}

// taken is what an agent has used of its budget and what its children have of it.
func (r *Runner) taken(a ledger.Agent) gate.Amount {
	used := a.Consumed()
	return r.ledger.ChildrenBudget(a).Plus(gate.Amount{InputTokens: used.GetInputTokens(), CostMicroUSD: used.GetCostMicroUsd()})
}

// left returns what is left of a budget.
func left(b agents.Budget, used gate.Amount) map[string]uint64 {
	bound, is := gate.Budget(b), map[string]uint64{}
	if bound.InputTokens > 0 {
		is["input_tokens"] = bound.InputTokens - min(bound.InputTokens, used.InputTokens)
	}
	if bound.CostMicroUSD > 0 {
		is["cost_micro_usd"] = bound.CostMicroUSD - min(bound.CostMicroUSD, used.CostMicroUSD)
	}
	return is
}

// look adds files and limits to two pictures: as the newest journal has them from before the
// pause, and as they are now.
func (r *Runner) look(ctx context.Context, a ledger.Agent, before, after *agents.Picture) error {
	was, err := r.seenBefore(a)
	if err != nil {
		return err
	}
	paths := a.Files()
	if was != nil {
		before.Files, before.Limits = was.Files, was.Limits
		paths = append(paths, slices.Collect(maps.Keys(was.Files))...)
	}
	if was == nil && len(paths) == 0 {
		return nil
	}
	slices.Sort(paths)
	paths = slices.Compact(paths)
	is, err := r.execs.Look(ctx, a.SandboxID, a.Spec.GetUser(), paths[:min(len(paths), maxLooked)])
	if err != nil {
		before.Files, before.Limits = nil, nil
		return err
	}
	after.Files, after.Limits = is.Files, is.Limits
	return nil
}

// maxBack is in how many journals a picture is looked for.
const maxBack = 3

// maxLooked is how many files a supervisor looks at.
const maxLooked = 128

// seenBefore returns the newest picture that a journal of the agent has from before its pause;
// nil if there is none. The journals are read once for each pause: a program can ask many times
// for an observation, and root in the sandbox can make them long.
func (r *Runner) seenBefore(a ledger.Agent) (*journal.Seen, error) {
	r.desk.mu.Lock()
	known, is := r.desk.pictures[a.ID]
	r.desk.mu.Unlock()
	if is && known.awayAt == a.AwayAt {
		return known.seen, nil
	}
	seen, err := r.readSeenBefore(a)
	if err == nil {
		r.desk.mu.Lock()
		defer r.desk.mu.Unlock()
		r.desk.pictures[a.ID] = pictured{a.AwayAt, seen}
	}
	return seen, err
}

func (r *Runner) readSeenBefore(a ledger.Agent) (newest *journal.Seen, err error) {
	began, paused := r.now(), a.AwaySince.UnixMilli()
	for n := a.Incarnations; n > 0 && n+maxBack > a.Incarnations && newest == nil && r.now().Sub(began) < tailWithin; n-- {
		_, err := r.readPast(a, n, func(row journal.Row, _ journal.Summary) {
			if row.Op == journal.Picture && row.Seen != nil && row.At <= paused && len(row.Seen.Files) <= maxLooked {
				newest = row.Seen
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return newest, nil
}
