package agents

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Ending returns the event that answers the end of the newest incarnation: the end of the
// agent, or a pause with the reason that wakes it again. The record must be Undecided.
func Ending(r Record, rules Rules) *agboxv1.AgentEvent {
	end := r.Last
	switch {
	case r.Done != nil:
		return ended(outcomeStates[r.Done.GetOutcome()], r.Done)
	case r.Kill != nil:
		return ended(Aborted, &agboxv1.AgentDone{
			Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT, Message: "It was killed" + by(r.Kill.GetBy()) + ".",
		})
	case end.GetKind() == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_BUDGET || r.OverBudget(rules.Budget):
		return failed(agboxv1.ErrorReason_BUDGET_EXHAUSTED, rules.Budget.Sentence(r.Progress, r.Crashes), 0)
	}
	switch end.GetKind() {
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED:
		switch unheld := end.GetDrainedFor() == agboxv1.PauseReason_PAUSE_REASON_UNHELD; {
		case unheld && r.Unheld():
			return suspended()
		case unheld:
			return paused(r, agboxv1.PauseReason_PAUSE_REASON_DRAINED, "It is held again.")
		}
		return paused(r, end.GetDrainedFor(), "It was drained.")
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT:
		return uncountedPause(r, rules, agboxv1.PauseReason_PAUSE_REASON_SUCCESSION, "Its context was used up.")
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST:
		if orphans(end) {
			return uncountedPause(r, rules, agboxv1.PauseReason_PAUSE_REASON_ORPHANED, errorMessage(end))
		}
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_KILLED:
		switch {
		case terminated(end):
			return uncountedPause(r, rules, agboxv1.PauseReason_PAUSE_REASON_DRAINED, "It was ended from outside by SIGTERM.")
		case end.GetExitCode() == 0 && !end.GetSpoke() && rules.ReadyStart:
			return ended(Completed, &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE, Message: "It exited with 0."})
		}
	}
	return Retry(r, rules)
}

// Retry returns the event that answers a crash: another attempt after a pause, or the end
// of the agent. The order of the checks is: number of crashes, budget, kind of crash.
func Retry(r Record, rules Rules) *agboxv1.AgentEvent {
	end := r.Last
	crashes, oom := r.Crashes+1, outOfMemory(end)
	same := append(slices.Clone(r.Errors), errorKey(end))
	message := errorMessage(end)
	switch {
	case crashes >= rules.Retry.Attempts:
		return deadLetter(crashes, fmt.Sprintf("It crashed %d times. The last time: %s", crashes, message))
	case r.OverBudget(rules.Budget):
		return failed(agboxv1.ErrorReason_BUDGET_EXHAUSTED, rules.Budget.Sentence(r.Progress, crashes), crashes)
	case end.GetRetryAfter() == nil && allEqual(same, rules.Retry.SameError):
		return deadLetter(crashes, fmt.Sprintf("Deterministic crash: same error on %d attempts: %s", rules.Retry.SameError, message))
	case oom && rules.Retry.OOM > 0 && crashes >= rules.Retry.OOM && r.OOMs == r.Crashes:
		return deadLetter(crashes, oomSentence(r, end, crashes))
	}
	pause := paused(r, agboxv1.PauseReason_PAUSE_REASON_CRASH, message)
	p := pause.GetPause()
	p.Attempt, p.Strategy = crashes, EscalatingBackoff
	if oom {
		p.Strategy = ReducedFootprint
	}
	if p.GetReason() == agboxv1.PauseReason_PAUSE_REASON_CRASH {
		delay := rules.Retry.delay(crashes)
		if asked := end.GetRetryAfter(); asked != nil { // its program knows what it waits for
			delay = asked.AsDuration()
		}
		p.WakeAt = timestamppb.New(r.LastAt.Add(delay))
	}
	return pause
}

// Strategies of an incarnation after a crash.
const (
	EscalatingBackoff = "escalating_backoff"
	ReducedFootprint  = "reduced_footprint"
)

// outcomeStates is the state in which an agent ends that has reported its outcome.
var outcomeStates = map[agboxv1.AgentOutcome]agboxv1.AgentState{
	agboxv1.AgentOutcome_AGENT_OUTCOME_COMPLETE: Completed,
	agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT:    Aborted,
	agboxv1.AgentOutcome_AGENT_OUTCOME_FAIL:     Failed,
}

// terminated reports whether SIGTERM ended the program, which agbox did not send.
func terminated(end *agboxv1.IncarnationEnd) bool {
	return end.GetExitCode() == 128+int32(unix.SIGTERM) || end.GetSignal() == int32(unix.SIGTERM)
}

// Told is the end of an incarnation as its successor is told of it. The exit code then says what
// a program takes it for: 137 is a lack of memory, 143 was asked for, and 1 is a crash. A SIGKILL
// of agbox, which ends a drain or replaces a program that hangs, is no lack of memory.
func Told(end *agboxv1.IncarnationEnd) *agboxv1.IncarnationEnd {
	if end.GetExitCode() != 128+int32(unix.SIGKILL) || outOfMemory(end) {
		return end
	}
	told := proto.CloneOf(end)
	told.ExitCode, told.Signal = 128+int32(unix.SIGTERM), 0
	switch end.GetKind() {
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LIVENESS, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_STARTUP,
		agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE:
		told.ExitCode = 1
	}
	return told
}

// outOfMemory reports whether an end is retried as one for lack of memory. A SIGKILL that agbox
// did not send is, because the kernel does not always say so. What people read claims a lack of
// memory only if OomKilled is set.
func outOfMemory(end *agboxv1.IncarnationEnd) bool {
	ours := end.GetKind() != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED
	return end.GetOomKilled() || !ours && end.GetExitCode() == 128+int32(unix.SIGKILL)
}

// uncounted reports whether an end that is answered with this pause was no crash, and was
// not asked for either.
func uncounted(end *agboxv1.IncarnationEnd, reason agboxv1.PauseReason) bool {
	switch reason {
	case agboxv1.PauseReason_PAUSE_REASON_SUCCESSION, agboxv1.PauseReason_PAUSE_REASON_ORPHANED:
		return true
	case agboxv1.PauseReason_PAUSE_REASON_DRAINED:
		return end.GetKind() != agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED
	}
	return false
}

// uncountedPause is a pause for an end that is no crash, unless too many have followed
// each other without progress.
func uncountedPause(r Record, rules Rules, reason agboxv1.PauseReason, message string) *agboxv1.AgentEvent {
	if r.Uncounted >= maxUncounted {
		return Retry(r, rules)
	}
	return paused(r, reason, message)
}

// oomSentence describes the crashes of an agent whose last one is end, and which were all like a
// lack of memory.
func oomSentence(r Record, end *agboxv1.IncarnationEnd, crashes uint32) string {
	if end.GetOomKilled() && r.KernelOOMs == r.OOMs {
		return fmt.Sprintf("Memory ran out on each of %d attempts, also with a reduced footprint: give its sandbox more memory.", crashes)
	}
	return fmt.Sprintf("SIGKILL, which agbox did not send, ended each of %d attempts, also with a reduced footprint. "+
		"The kernel did not report a lack of memory each time: look for who sends SIGKILL, or give its sandbox more memory.", crashes)
}

// delay is the pause after the given number of crashes.
func (r RetryRules) delay(crashes uint32) time.Duration {
	if len(r.Delays) == 0 {
		return 0
	}
	return r.Delays[min(int(crashes), len(r.Delays))-1]
}

// allEqual reports whether the last n messages are there and equal.
func allEqual(messages []string, n uint32) bool {
	if n == 0 || uint32(len(messages)) < n {
		return false
	}
	last := messages[uint32(len(messages))-n:]
	for _, m := range last {
		if m != last[0] {
			return false
		}
	}
	return true
}

// errorMessage describes how an incarnation ended, in a sentence.
func errorMessage(end *agboxv1.IncarnationEnd) string {
	if m := strings.TrimSpace(end.GetErrorMessage()); m != "" {
		return m
	}
	switch end.GetKind() {
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LIVENESS:
		return "Its liveness probe failed."
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_STARTUP:
		return "It did not become ready in time."
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE:
		return "It sent no beat for too long."
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_CONTEXT:
		return "Its context was used up again and again without progress."
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST:
		if end.GetOomKilled() {
			return "Its container ran out of memory."
		}
		return "It was lost with its container."
	}
	switch {
	case end.GetOomKilled():
		return "It was killed for lack of memory."
	case outOfMemory(end) && end.GetSignal() != 0:
		return "SIGKILL ended it, which agbox did not send."
	case outOfMemory(end):
		return "It exited with 137, as after SIGKILL."
	case end.GetSignal() != 0:
		return fmt.Sprintf("Signal %d ended it.", end.GetSignal())
	case end.GetExitCode() == 0:
		return "It exited with 0 without reporting an outcome."
	}
	return fmt.Sprintf("It exited with %d.", end.GetExitCode())
}

// varying are the parts of a message that differ between two occurrences of one error:
// addresses, hashes, numbers.
var varying = regexp.MustCompile(`0x[0-9a-fA-F]+|[0-9a-fA-F]{6,}|[0-9]+`)

// errorKey is the message of an end without its varying parts.
func errorKey(end *agboxv1.IncarnationEnd) string {
	key := varying.ReplaceAllString(errorMessage(end), "#")
	if end.GetErrorMessage() == "" {
		key = fmt.Sprintf("%s %d", key, end.GetExitCode())
	}
	return key[:min(len(key), 512)]
}

func by(who string) string {
	if who == "" {
		return ""
	}
	return " by " + who
}

func ended(state agboxv1.AgentState, done *agboxv1.AgentDone) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_ENDED, State: state, Details: &agboxv1.AgentEvent_Done{Done: done},
	}
}

// Reaped returns the end of an agent that is not revived after a loss.
func Reaped(message string) *agboxv1.AgentEvent {
	return ended(Aborted, &agboxv1.AgentDone{Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_ABORT, Message: message})
}

func failed(reason agboxv1.ErrorReason, message string, attempt uint32) *agboxv1.AgentEvent {
	return ended(Failed, &agboxv1.AgentDone{
		Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_FAIL, Message: message, ErrorCode: reason.String(), Attempt: attempt,
	})
}

func deadLetter(attempt uint32, message string) *agboxv1.AgentEvent {
	return ended(DeadLetter, &agboxv1.AgentDone{
		Outcome: agboxv1.AgentOutcome_AGENT_OUTCOME_FAIL, Message: message, Attempt: attempt,
	})
}

// paused is a pause. An agent that waits for somebody goes on waiting for the same,
// whatever became of its incarnation meanwhile.
func paused(r Record, reason agboxv1.PauseReason, message string) *agboxv1.AgentEvent {
	if r.State == Paused && !r.Pause.Woken && waitsForSomebody(r.Pause.Reason) {
		reason, message = r.Pause.Reason, r.Pause.Message
	}
	return PausedFor(reason, message)
}

// strength orders the modes of a kill.
func strength(mode agboxv1.KillMode) int {
	switch mode {
	case agboxv1.KillMode_KILL_MODE_GRACEFUL:
		return 0
	case agboxv1.KillMode_KILL_MODE_NOW:
		return 2
	}
	return 1
}

// KillAcknowledged is how long a program that is asked to end by itself may take to
// acknowledge that.
const KillAcknowledged = 30 * time.Second

// EndsItself reports whether the agent is asked to end by itself.
func (r Record) EndsItself() bool {
	return r.Kill != nil && r.Kill.GetMode() == agboxv1.KillMode_KILL_MODE_GRACEFUL
}

// orphans reports whether an end is the loss of a container, an engine or a host.
func orphans(end *agboxv1.IncarnationEnd) bool {
	return end.GetKind() == agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST && !end.GetOomKilled()
}

// Stronger returns the wish that replaces an earlier one, which may be nil, after a new one.
// It is nil if the earlier one stays.
func Stronger(before, wish *agboxv1.AgentKill) *agboxv1.AgentKill {
	if before == nil {
		return wish
	}
	both := proto.CloneOf(wish)
	if strength(both.GetMode()) < strength(before.GetMode()) {
		both.Mode = before.GetMode()
	}
	both.Cascade = cmp.Or(wish.GetCascade(), before.GetCascade())
	if both.GetMode() == before.GetMode() && both.GetCascade() == before.GetCascade() {
		return nil
	}
	return both
}
