package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

const (
	// attackTime is how long an attack lasts, in seconds.
	attackTime = 20
	// besides is how many commands are measured beside an attack, and how many reports of each
	// kind.
	besides = 200
	// attackTurns is how often everything is measured.
	attackTurns = 2
)

// attackOps are what is sent: a gate is decided by the supervisor, children are told by the
// daemon. burners means that nothing is sent: shell loops run instead, which a sandbox may
// always do, as many as program and supervisor have busy threads.
var attackOps = []string{burners, "gate", "children"}

const burners = "burners"

// attacks measures what others notice of a program that sends requests as fast as it can: a
// command, and an agent that asks whether it may call a tool, both in another sandbox. The
// measurements take turns, because the load of the machine changes.
func (b *agentBench) attacks(ctx context.Context) error {
	other := *b
	var err error
	if other.box, err = b.sandbox(ctx); err != nil {
		return err
	}
	fmt.Printf("a program that sends requests for %d s as fast as it can, beside others in another sandbox\n", attackTime)
	for turn := range attackTurns {
		quiet, quietGate, err := other.latency(ctx)
		if err != nil {
			return err
		}
		fmt.Printf(" turn %d\n  %-44s %s\n  %-44s %s\n", turn+1, "baseline: a command without it", quiet, "baseline: gate of an agent without it", quietGate)
		for _, op := range attackOps {
			beside, gate, counts, err := other.beside(ctx, b.box, op)
			if err != nil {
				return err
			}
			var rates []string
			for _, what := range slices.Sorted(maps.Keys(counts)) {
				rates = append(rates, fmt.Sprintf("%s %.0f", what, counts[what]/attackTime))
			}
			fmt.Printf("  %-44s a second: %s\n", "op "+op, strings.Join(rates, ", "))
			for _, row := range []struct {
				what          string
				before, after figures
			}{{"a command beside it", quiet, beside}, {"gate of an agent beside it", quietGate, gate}} {
				fmt.Printf("  %-44s %s   ratio of medians %.1fx\n", row.what, row.after, float64(row.after.at(0.5))/float64(row.before.at(0.5)))
			}
		}
	}
	return nil
}

// beside measures commands and gates while an op is sent in box, and how often it was.
func (b *agentBench) beside(ctx context.Context, box, op string) (commands, gates figures, counts map[string]float64, err error) {
	program := []string{"/robot/robot", "-attack", op, "-length", fmt.Sprintf("%ds", attackTime)}
	if op == burners {
		program = []string{"sh", "-c", fmt.Sprintf("for i in $(seq $((2 * $(nproc)))); do timeout %d sh -c 'while :; do :; done' & done; wait; echo '{}'", attackTime)}
	}
	id, err := b.spawn(ctx, box, &agboxv1.AgentSpec{Command: program, Retry: &agboxv1.AgentRetry{Attempts: 1}})
	if err != nil {
		return nil, nil, nil, err
	}
	err = b.until(ctx, id, func(ev *agboxv1.AgentEvent) bool { return ev.GetState() == agboxv1.AgentState_AGENT_STATE_EXECUTING })
	if err != nil {
		return nil, nil, nil, err
	}
	if commands, gates, err = b.latency(ctx); err != nil {
		return nil, nil, nil, err
	}
	if a, err := b.c.GetAgent(ctx, id); err != nil || !a.GetRunning() {
		return nil, nil, nil, fmt.Errorf("the attack was over before the others were measured: %v, %w", a, err)
	}
	counts, err = b.counts(ctx, id)
	return commands, gates, counts, err
}

// latency measures commands and gates in the sandbox.
func (b *agentBench) latency(ctx context.Context) (commands, gates figures, err error) {
	id, err := b.spawn(ctx, b.box, &agboxv1.AgentSpec{Command: []string{"/robot/robot", "-measure", fmt.Sprint(besides)}, Retry: &agboxv1.AgentRetry{Attempts: 1}})
	if err != nil {
		return nil, nil, err
	}
	a, err := b.c.WaitAgent(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	times, err := b.printed(ctx, a)
	if err != nil {
		return nil, nil, err
	}
	for range besides {
		if err := commands.time(func() error {
			_, err := b.c.Run(ctx, &agboxv1.CreateExecRequest{SandboxId: b.box, Command: []string{"true"}}, io.Discard, io.Discard)
			return err
		}); err != nil {
			return nil, nil, err
		}
	}
	return commands, times["gate"], nil
}

// counts returns what the attack of an agent has printed, once it is over.
func (b *agentBench) counts(ctx context.Context, id string) (map[string]float64, error) {
	a, err := b.c.WaitAgent(ctx, id)
	if err != nil {
		return nil, err
	}
	printed, err := b.output(ctx, a)
	if err != nil {
		return nil, err
	}
	var counts map[string]float64
	if err := json.Unmarshal(printed, &counts); err != nil {
		return nil, fmt.Errorf("the attack printed %q: %w", printed, err)
	}
	return counts, nil
}
