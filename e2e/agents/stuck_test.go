package agents

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// lastEvents and lastLines are how much is shown of an agent that has not ended.
const lastEvents, lastLines = 12, 12

// unfinished describes each agent that has not ended: who holds it, which resources it holds and
// waits for, its newest events, and the end of its robot's diary. The context of the test may be
// over.
func unfinished(ctx context.Context, t *testing.T, c *client.Client, folder robot.Folder, all []*agboxv1.Agent) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	var out strings.Builder
	leases, err := c.Leases(ctx, "")
	if err != nil {
		fmt.Fprintf(&out, "\nthe leases cannot be listed: %v", err)
	}
	words := make(map[string]int)
	for _, a := range all {
		words[a.GetWord()]++
		if !alive(a) {
			continue
		}
		fmt.Fprintf(&out, "\n%s, a child of %s, is %s since %s: %s", a.GetAgentId(), a.GetParent(), a.GetWord(), clock(a.GetStateChangedAt().AsTime()), a.GetMessage())
		fmt.Fprintf(&out, "\n  sandbox %s, incarnation %d (running: %t), %d crashes, %d unread messages, observation %d %s",
			a.GetSandboxId(), a.GetIncarnation(), a.GetRunning(), a.GetCrashes(), a.GetUnread(), a.GetObservation(), a.GetDegraded())
		fmt.Fprintf(&out, "\n  holders: %v", a.GetHolders())
		for _, l := range leases {
			if l.GetAgentId() == a.GetAgentId() {
				fmt.Fprintf(&out, "\n  lease: %v of %s (%v) %v", l.GetVerdict(), l.GetLease().GetResource(), l.GetLease().GetMode(), l.GetWaitsFor())
			}
		}
		out.WriteString(eventsAtTheEnd(ctx, c, a))
		for _, line := range folder.Story(t, a.GetAgentId()).Last(lastLines) {
			fmt.Fprintf(&out, "\n  diary: %s", line)
		}
	}
	fmt.Fprintf(&out, "\nof all there are:")
	for _, word := range slices.Sorted(maps.Keys(words)) {
		fmt.Fprintf(&out, " %d %s", words[word], word)
	}
	return out.String()
}

// eventsAtTheEnd has a line for each of the newest events of an agent.
func eventsAtTheEnd(ctx context.Context, c *client.Client, a *agboxv1.Agent) string {
	var lines []string
	for ev, err := range c.WatchAgents(ctx, a.GetAgentId(), 0) {
		if err != nil {
			lines = append(lines, fmt.Sprintf("\n  its events cannot be read: %v", err))
			break
		}
		brief, ok := proto.Clone(ev).(*agboxv1.AgentEvent)
		if !ok {
			break
		}
		brief.EventId, brief.AgentId, brief.OccurredAt, brief.Replay, brief.Picture = "", "", nil, false, nil
		text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(brief)
		lines = append(lines, fmt.Sprintf("\n  event: %s %s", clock(ev.GetOccurredAt().AsTime()), text))
		if err != nil || ev.GetSequence() >= a.GetLastSequence() {
			break
		}
	}
	return strings.Join(lines[max(0, len(lines)-lastEvents):], "")
}

// clock is a time of this day.
func clock(at time.Time) string { return at.UTC().Format("15:04:05.000") }
