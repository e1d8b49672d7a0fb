package main

import (
	"context"
	"fmt"
	"io"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// talks is how many messages a parent sends to its child in each state of the child, and
	// families how many parents do so. An incarnation may send 200 requests as fast as it can.
	talks, families = 30, 5
	// floods is how many messages go to each of the subscribers of a stream.
	floods, subscribers = 1000, 100
)

// talks measures messages of a parent to its child, from the send to the program of the child.
func (b *agentBench) talks(ctx context.Context) error {
	var waiting, woken figures
	for range families {
		times, err := b.talk(ctx)
		if err != nil {
			return err
		}
		waiting, woken = append(waiting, times["recv"]...), append(woken, times["idle"]...)
	}
	fmt.Printf("messages of a parent until its child has them, %d times each\n", len(woken))
	fmt.Printf("  %-44s %s\n", "to a child that waits for one", waiting)
	aim("to a child that is IDLE and is woken", woken, 5*time.Millisecond)
	return nil
}

// talk measures with one parent and one child.
func (b *agentBench) talk(ctx context.Context) (map[string]figures, error) {
	id, err := b.spawn(ctx, b.box, &agboxv1.AgentSpec{
		Command: []string{"/robot/robot", "-talk", fmt.Sprint(talks)}, Retry: &agboxv1.AgentRetry{Attempts: 1},
		MaySpawn: &agboxv1.AgentMaySpawn{Classes: []string{"worker"}, Children: 1, Depth: 1},
	})
	if err != nil {
		return nil, err
	}
	parent, err := b.c.WaitAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	if parent.GetState() != agboxv1.AgentState_AGENT_STATE_COMPLETED {
		return nil, fmt.Errorf("the parent is %s: %s", parent.GetWord(), parent.GetMessage())
	}
	tree, err := b.c.ListAgents(ctx, &agboxv1.ListAgentsRequest{All: true, Class: "worker"})
	if err != nil || len(tree) == 0 {
		return nil, fmt.Errorf("the parent has spawned no child: %w", err)
	}
	child, err := b.c.WaitAgent(ctx, tree[len(tree)-1].GetAgentId()) // the newest
	if err != nil {
		return nil, err
	}
	return b.printed(ctx, child)
}

// streams measures messages to many subscribers, and commands that run beside them.
func (b *agentBench) streams(ctx context.Context) error {
	listeners := make([]string, subscribers)
	err := each(makers, subscribers, func(i int) (err error) {
		if listeners[i], err = b.spawn(ctx, b.box, &agboxv1.AgentSpec{Command: []string{"sh", "-c", "agbox-agent open news && agbox-agent phase PLANNING && exec sleep 1000"}}); err != nil {
			return err
		}
		planned := 0
		return b.until(ctx, listeners[i], func(ev *agboxv1.AgentEvent) bool {
			if ev.GetState() == agboxv1.AgentState_AGENT_STATE_PLANNING {
				planned++
			}
			return planned == 2 // that of its start, and that of its program
		})
	})
	if err != nil {
		return err
	}
	begun := time.Now()
	id, err := b.spawn(ctx, b.box, &agboxv1.AgentSpec{Command: []string{"/robot/robot", "-flood", fmt.Sprint(floods), "-stream", "news"}, Retry: &agboxv1.AgentRetry{Attempts: 1}})
	if err != nil {
		return err
	}
	commits := make(map[uint64]bool)
	watched := make(chan error, 1)
	go func() {
		watched <- b.until(ctx, id, func(ev *agboxv1.AgentEvent) bool {
			if upto := ev.GetJournalUpto(); upto > 0 {
				commits[upto] = true
			}
			return ev.GetType() == agboxv1.AgentEventType_AGENT_ENDED
		})
	}()
	var beside figures
	for arrived := false; !arrived; {
		if err := beside.time(func() error {
			_, err := b.c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: b.box, Command: []string{"true"}}, io.Discard, io.Discard)
			return err
		}); err != nil {
			return err
		}
		arrived = true
		for _, id := range listeners {
			a, err := b.c.GetAgent(ctx, id)
			if err != nil {
				return err
			}
			arrived = arrived && a.GetUnread() == floods
		}
	}
	took := time.Since(begun)
	if err := <-watched; err != nil {
		return err
	}
	fmt.Printf("%d messages on a stream to %d subscribers\n", floods, subscribers)
	fmt.Printf("  in all inboxes after %.2f s, %d commits: %.0f copies a second\n", took.Seconds(), len(commits), floods*subscribers/took.Seconds())
	fmt.Printf("  %-44s %s   longest %.1f ms\n", "commands that run beside them", beside, ms(beside.at(1)))
	return each(makers, subscribers, func(i int) error { return b.remove(ctx, listeners[i]) })
}
