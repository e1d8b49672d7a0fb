package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

type agentAttachOptions struct {
	tail   string
	quiet  bool
	style  logsStyle
	format format
}

func (a *app) agentAttachCommand() *cobra.Command {
	var o agentAttachOptions
	cmd := &cobra.Command{
		Use:   "attach AGENT [flags]",
		Short: "Watch an agent: its output and what happens to it, until it has ended",
		Long: `Watch an agent: the output of its incarnations, and on standard error what happens to
it. It goes on over crashes of the program, and while agbox is upgraded or its daemon
restarted; nothing is lost or repeated. Ctrl-C ends only the watching. The exit code
is 0 if the agent is COMPLETED, else 1.

The last screenful of the newest incarnation is shown first. With --tail all it begins
with the first event and the first incarnation that are kept.

With -o json each line is an event, or a piece of output as in "agbox logs -o json".`,
		Example: `  agbox agent attach fixer
  agbox agent attach --tail all -t fixer`,
		Args: arguments(1, 1, "an AGENT"),
		RunE: a.with(func(ctx context.Context, c *client.Client, args []string) error {
			lines, err := (&attachOptions{tail: o.tail}).lines(a)
			if err != nil {
				return err
			}
			id, err := a.agent(ctx, c, args[0], reads)
			if err != nil {
				return err
			}
			return a.whileWaiting(ctx, c, id, false, func() error { return o.run(ctx, a, c, id, lines) })
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.tail, "tail", "", "`NUMBER` of lines to show first, or all (default: a screenful)")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "show only the output")
	o.style.addFlags(f)
	addFormat(cmd, &o.format)
	return cmd
}

// run watches the agent with that id until it has ended. lines is how many past lines to
// show; nil means everything.
func (o *agentAttachOptions) run(ctx context.Context, a *app, c *client.Client, id string, lines *uint64) error {
	p := a.logPrinter(o.style, o.format)
	var news agentNews
	for item, err := range c.AttachAgent(ctx, id, client.AgentAttachOptions{TailLines: lines}) {
		switch {
		case err != nil:
			return flushed(p, err)
		case item.End != nil:
			return agentOutcome(item.End)
		case item.Output != nil:
			err = p.print(&agboxv1.ExecStatus{ExecId: execOf(id, item.Cursor.Incarnation)}, *item.Output)
		case o.format == formatJSON:
			err = printJSONLine(a.stdout, item.Event)
		default:
			if text := news.of(item.Event); text != "" && !o.quiet {
				a.say("%s", text)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// execOf is the id of the exec of an incarnation.
func execOf(agentID string, incarnation uint32) string {
	return fmt.Sprintf("agent-%s-%d", agentID, incarnation)
}

// agentNews describes the events of an agent. It remembers what was said before.
type agentNews struct {
	said string
}

// of says in a line what happened; empty if a person need not know.
func (n *agentNews) of(ev *agboxv1.AgentEvent) string {
	run := ev.GetIncarnation()
	switch ev.GetType() {
	case agboxv1.AgentEventType_AGENT_SPAWNED:
		return "The agent was spawned in sandbox " + ev.GetSpawned().GetSandboxId() + "."
	case agboxv1.AgentEventType_AGENT_BEGUN:
		return fmt.Sprintf("Incarnation %d begins.", run)
	case agboxv1.AgentEventType_AGENT_MOVED:
		return "The container of its sandbox was gone; it gets the new sandbox " + ev.GetMoved().GetSandboxId() + "."
	case agboxv1.AgentEventType_AGENT_INCARNATION_ENDED:
		return endNews(run, ev.GetEnd())
	case agboxv1.AgentEventType_AGENT_PHASE, agboxv1.AgentEventType_AGENT_RESUMED, agboxv1.AgentEventType_AGENT_ENDED:
		return "The agent is " + strings.TrimPrefix(ev.GetState().String(), "AGENT_STATE_") + "."
	case agboxv1.AgentEventType_AGENT_PROGRESS:
		if said := ev.GetProgress().GetLastMessage(); said != n.said {
			n.said = said
			return "It says: " + said
		}
	case agboxv1.AgentEventType_AGENT_CHECKPOINT:
		return fmt.Sprintf("Checkpoint %d is stored.", ev.GetCheckpoint().GetSeq())
	case agboxv1.AgentEventType_AGENT_CONTEXT:
		return "Its context is " + strings.TrimPrefix(ev.GetGauge().GetContext().String(), "AGENT_CONTEXT_") + "."
	case agboxv1.AgentEventType_AGENT_LIVENESS:
		return "Its liveness is " + strings.TrimPrefix(ev.GetGauge().GetLiveness().String(), "AGENT_LIVENESS_") + "."
	case agboxv1.AgentEventType_AGENT_PAUSED:
		return pauseNews("The agent is paused", ev.GetPause())
	case agboxv1.AgentEventType_AGENT_PAUSE_REQUESTED:
		return pauseNews("A pause was requested", ev.GetPause())
	case agboxv1.AgentEventType_AGENT_WOKEN:
		return "It was woken by " + ev.GetWake().GetBy() + "."
	case agboxv1.AgentEventType_AGENT_OPENED, agboxv1.AgentEventType_AGENT_CLOSED:
		return holdNews(ev)
	case agboxv1.AgentEventType_AGENT_KILL_REQUESTED:
		return "A kill was requested by " + ev.GetKill().GetBy() + "."
	case agboxv1.AgentEventType_AGENT_DONE_REPORTED:
		return "It reported " + strings.ToLower(strings.TrimPrefix(ev.GetDone().GetOutcome().String(), "AGENT_OUTCOME_")) + ". " + ev.GetDone().GetMessage()
	}
	return ""
}

func endNews(run uint32, end *agboxv1.IncarnationEnd) string {
	how := fmt.Sprintf("with exit code %d", end.GetExitCode())
	switch end.GetKind() {
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_NEVER_STARTED:
		return fmt.Sprintf("Incarnation %d was not started.", run)
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LOST:
		how = "because its sandbox was lost"
	case agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED:
	default:
		how += " (" + strings.ToLower(strings.TrimPrefix(end.GetKind().String(), "INCARNATION_END_KIND_")) + ")"
	}
	return strings.TrimSpace(fmt.Sprintf("Incarnation %d ended %s. %s", run, how, end.GetErrorMessage()))
}

// holdNews is about an agent's holders and the streams that it has open.
func holdNews(ev *agboxv1.AgentEvent) string {
	h, opened := ev.GetHold(), ev.GetType() == agboxv1.AgentEventType_AGENT_OPENED
	switch {
	case h.GetStream() != "" && opened:
		return "It opens the stream " + h.GetStream() + "."
	case h.GetStream() != "":
		return "It closes the stream " + h.GetStream() + "."
	case opened:
		return "It is held by " + h.GetHolder() + "."
	}
	return strings.TrimSuffix("It is not held any more by "+h.GetHolder()+": "+h.GetWhy(), ": ") + "."
}

func pauseNews(what string, p *agboxv1.AgentPause) string {
	text := what + " (" + strings.TrimPrefix(p.GetReason().String(), "PAUSE_REASON_") + "). " + p.GetMessage()
	if p.GetWakeAt() != nil {
		text += " It goes on at " + p.GetWakeAt().AsTime().Local().Format("15:04:05") + "."
	}
	return strings.TrimSpace(text)
}

type agentLogsOptions struct {
	follow bool
	style  logsStyle
	format format
}

func (a *app) agentLogsCommand() *cobra.Command {
	var o agentLogsOptions
	cmd := &cobra.Command{
		Use:   "logs [-f] AGENT [flags]",
		Short: "Show the output of an agent's incarnations, one after the other",
		Args:  arguments(1, 1, "an AGENT"),
		RunE: a.withAgent(func(ctx context.Context, c *client.Client, id string) error {
			if !o.follow {
				return o.run(ctx, a, c, id)
			}
			return a.whileWaiting(ctx, c, id, false, func() error { return o.run(ctx, a, c, id) })
		}),
	}
	f := cmd.Flags()
	f.BoolVarP(&o.follow, "follow", "f", false, "keep showing new output, also of later incarnations, until the agent has ended")
	o.style.addFlags(f)
	addFormat(cmd, &o.format)
	return cmd
}

// run prints the logs of the incarnations that have begun. If it follows, it waits for the
// next one until the agent has ended.
func (o *agentLogsOptions) run(ctx context.Context, a *app, c *client.Client, id string) error {
	g, err := c.GetAgent(ctx, id)
	if err != nil {
		return err
	}
	p := a.logPrinter(o.style, o.format)
	printed := uint32(0)
	for ev, err := range c.WatchAgents(ctx, g.GetAgentId(), 0) {
		if err != nil {
			return err
		}
		if ev.GetBegun() != nil {
			printed = ev.GetIncarnation()
			if err := o.print(ctx, c, p, ev); err != nil {
				return err
			}
		}
		switch {
		case ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED, ev.GetType() == agboxv1.AgentEventType_AGENT_DELETED:
			return nil
		case !o.follow && printed >= g.GetIncarnation() && ev.GetSequence() >= g.GetLastSequence():
			return nil
		}
	}
	return nil
}

// print prints the log of one incarnation. begun comes before its command is started.
func (o *agentLogsOptions) print(ctx context.Context, c *client.Client, p *logPrinter, begun *agboxv1.AgentEvent) error {
	execID := begun.GetBegun().GetExecId()
	e, err := c.GetExec(ctx, execID)
	if o.follow && errors.Is(err, client.ErrNotFound) {
		awaitStart(ctx, c, begun)
		e, err = c.GetExec(ctx, execID)
	}
	if errors.Is(err, client.ErrNotFound) {
		return nil // its sandbox was lost before it was started, or its log was deleted
	}
	if err != nil {
		return err
	}
	for item, err := range c.FollowLogs(ctx, execID, client.LogOptions{Follow: o.follow}) {
		if err != nil {
			return flushed(p, err)
		}
		if err := p.print(e, item); err != nil {
			return err
		}
	}
	return nil
}

// awaitStart waits until the command of an incarnation is started, or the incarnation has ended.
func awaitStart(ctx context.Context, c *client.Client, begun *agboxv1.AgentEvent) {
	ctx, over := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer over()
	watching.Go(func() {
		defer over()
		for ev, err := range c.WatchAgents(ctx, begun.GetAgentId(), begun.GetPosition()) {
			if err != nil || ev.GetEnd() != nil {
				return
			}
		}
	})
	for ev, err := range c.Events(ctx, begun.GetBegun().GetSandboxId(), 0) {
		if err != nil || ev.GetExec().GetExecId() == begun.GetBegun().GetExecId() {
			return
		}
	}
}
