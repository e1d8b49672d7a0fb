package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
)

// figure is a time that agents are promised, and what was measured.
type figure struct {
	what string
	// from and to bound what is right.
	from, to, got time.Duration
}

// late is how much later than promised something may be on a busy machine.
const late = 3 * time.Second

// benchFigures measures the promised times of agents at their real length.
func benchFigures(ctx context.Context) error {
	begun := time.Now()
	wrong := 0
	show := func(all []figure) {
		for _, f := range all {
			verdict := "ok"
			if f.got < f.from || f.got > f.to {
				verdict, wrong = "WRONG", wrong+1
			}
			fmt.Printf("  %-72s %8.1f s   promised %.0f s   %s\n", f.what, f.got.Seconds(), f.from.Seconds(), verdict)
		}
	}
	err := withRobot(ctx, func(b *agentBench, _ func(...string) error) error {
		var mu sync.Mutex // guards shown figures
		parts := []func(context.Context) ([]figure, error){b.killed, b.drained, b.unhealthy, b.startup, b.stopped, b.busy, b.letGo, b.deaf, b.expired}
		return each(len(parts), len(parts), func(i int) error {
			all, err := parts[i](ctx)
			mu.Lock()
			defer mu.Unlock()
			show(all)
			return err
		})
	})
	if err == nil {
		err = withRobot(ctx, func(b *agentBench, agbox func(...string) error) error { return b.away(ctx, agbox) })
	}
	fmt.Printf("in %.0f minutes\n", time.Since(begun).Minutes())
	if wrong > 0 {
		err = errors.Join(err, fmt.Errorf("%d figures are wrong", wrong))
	}
	return err
}

// work starts an agent with the robot, which ends at its first crash, and returns its id
// once it works.
func (b *agentBench) work(ctx context.Context, spec *agboxv1.AgentSpec, flags ...string) (string, error) {
	spec.Command = append([]string{"/robot/robot"}, flags...)
	spec.Retry = &agboxv1.AgentRetry{Attempts: 1}
	id, err := b.spawn(ctx, b.box, spec)
	if err == nil {
		_, err = b.noted(ctx, id, diary.Begin)
	}
	return id, err
}

// noted waits until the diary of an agent's robot has such an entry.
func (b *agentBench) noted(ctx context.Context, id, what string) (diary.Entry, error) {
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	for {
		entries, err := diary.Read(diary.Name(b.folder, id))
		if err != nil {
			return diary.Entry{}, err
		}
		if i := slices.IndexFunc(entries, func(e diary.Entry) bool { return e.What == what }); i >= 0 {
			return entries[i], nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return diary.Entry{}, ctx.Err()
		}
	}
}

// ended waits for the end of an agent's incarnation and returns how long it came after a
// time, and how it ended.
func (b *agentBench) ended(ctx context.Context, id string, after time.Time) (time.Duration, *agboxv1.IncarnationEnd, error) {
	for ev, err := range b.c.WatchAgents(ctx, id, 0) {
		if err != nil {
			return 0, nil, err
		}
		if end := ev.GetEnd(); end != nil {
			return time.Since(after), end, nil
		}
	}
	return 0, nil, ctx.Err()
}

// wantEnd checks how an incarnation ended.
func wantEnd(end *agboxv1.IncarnationEnd, want agboxv1.IncarnationEndKind) error {
	if end.GetKind() != want {
		return fmt.Errorf("an incarnation ended as %v, want it %v", end, want)
	}
	return nil
}

func at(e diary.Entry) time.Time { return time.UnixMilli(e.At) }

// killed kills a program that ignores SIGTERM.
func (b *agentBench) killed(ctx context.Context) ([]figure, error) {
	id, err := b.work(ctx, &agboxv1.AgentSpec{}, "-wait-at", "1", "-ignore-term")
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	if _, err := b.c.KillAgent(ctx, id, agboxv1.KillMode_KILL_MODE_TERMINATE); err != nil {
		return nil, err
	}
	took, end, err := b.ended(ctx, id, asked)
	if err != nil {
		return nil, err
	}
	term, err := b.noted(ctx, id, diary.Signal)
	return []figure{
		{"kill: SIGTERM", 0, late, at(term).Sub(asked)},
		{"kill: SIGKILL to a program that ignores SIGTERM", 5 * time.Second, 5*time.Second + late, took},
	}, errors.Join(err, wantEnd(end, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_KILLED))
}

// drained stops the sandbox of a program that does not want to end.
func (b *agentBench) drained(ctx context.Context) ([]figure, error) {
	own := *b
	var err error
	if own.box, err = b.sandbox(ctx); err != nil {
		return nil, err
	}
	id, err := own.work(ctx, &agboxv1.AgentSpec{}, "-wait-at", "1", "-ignore-term")
	if err != nil {
		return nil, err
	}
	asked := time.Now()
	if err := b.c.StopSandbox(ctx, own.box); err != nil {
		return nil, err
	}
	took, end, err := b.ended(ctx, id, asked)
	if err != nil {
		return nil, err
	}
	term, err := b.noted(ctx, id, diary.Signal)
	return []figure{
		{"drain, as its sandbox is stopped: SIGTERM", 5 * time.Second, 5*time.Second + late, at(term).Sub(asked)},
		{"drain, as its sandbox is stopped: SIGKILL to a program that goes on", 65 * time.Second, 65*time.Second + late, took},
	}, errors.Join(err, wantEnd(end, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_DRAINED))
}

// unhealthy has the liveness probe fail from some moment on.
func (b *agentBench) unhealthy(ctx context.Context) ([]figure, error) {
	probe := &agboxv1.AgentProbe{Exec: []string{"test", "-e", "/robot/alive"}}
	if err := create(b.folder, "alive"); err != nil {
		return nil, err
	}
	id, err := b.work(ctx, &agboxv1.AgentSpec{Probes: &agboxv1.AgentProbes{Liveness: probe}}, "-wait-at", "1")
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, 25*time.Second); err != nil { // it has started, and was checked
		return nil, err
	}
	from := time.Now()
	if err := remove(b.folder, "alive"); err != nil {
		return nil, err
	}
	took, end, err := b.ended(ctx, id, from)
	return []figure{{"liveness probe fails: killed within 30 s and one period of 10 s", 20 * time.Second, 40*time.Second + late, took}},
		errors.Join(err, wantEnd(end, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_LIVENESS))
}

// startup has a program that never reports that it is ready.
func (b *agentBench) startup(ctx context.Context) ([]figure, error) {
	begun := time.Now()
	id, err := b.work(ctx, &agboxv1.AgentSpec{Ready: agboxv1.AgentReady_AGENT_READY_REPORT}, "-die", "1@2:hang")
	if err != nil {
		return nil, err
	}
	took, end, err := b.ended(ctx, id, begun)
	if err != nil {
		return nil, err
	}
	term, err := b.noted(ctx, id, diary.Signal)
	return []figure{
		{"ready: report, and it never is: SIGTERM", 60 * time.Second, 60*time.Second + late, at(term).Sub(begun)},
		{"ready: report, and it never is: SIGKILL", 65 * time.Second, 65*time.Second + late, took},
	}, errors.Join(err, wantEnd(end, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_STARTUP))
}

// stopped stops a program that beats with SIGSTOP.
func (b *agentBench) stopped(ctx context.Context) ([]figure, error) {
	id, err := b.work(ctx, &agboxv1.AgentSpec{}, "-die", "1@8:stop")
	if err != nil {
		return nil, err
	}
	silent, err := b.noted(ctx, id, diary.Silent)
	if err != nil {
		return nil, err
	}
	levels, err := b.levels(ctx, id, at(silent))
	if err != nil {
		return nil, err
	}
	took, end, err := b.ended(ctx, id, at(silent))
	return []figure{
		{"stopped by SIGSTOP: UNHEALTHY", 30 * time.Second, 30*time.Second + late, levels[agboxv1.AgentLiveness_AGENT_LIVENESS_UNHEALTHY]},
		{"stopped by SIGSTOP: ESCALATED", 45 * time.Second, 45*time.Second + late, levels[agboxv1.AgentLiveness_AGENT_LIVENESS_ESCALATED]},
		{"stopped by SIGSTOP: replaced, because it hangs", 90 * time.Second, 90*time.Second + 15*time.Second + late, took},
	}, errors.Join(err, wantEnd(end, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE))
}

// levels returns how long after a time each level of liveness was shown first, until the
// incarnation ends.
func (b *agentBench) levels(ctx context.Context, id string, after time.Time) (map[agboxv1.AgentLiveness]time.Duration, error) {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	levels := make(map[agboxv1.AgentLiveness]time.Duration)
	for {
		a, err := b.c.GetAgent(ctx, id)
		if err != nil || !a.GetRunning() {
			return levels, err
		}
		if _, known := levels[a.GetLiveness()]; !known {
			levels[a.GetLiveness()] = time.Since(after)
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// busy has a program that works without a beat.
func (b *agentBench) busy(ctx context.Context) ([]figure, error) {
	id, err := b.work(ctx, &agboxv1.AgentSpec{}, "-die", "1@8:busy")
	if err != nil {
		return nil, err
	}
	silent, err := b.noted(ctx, id, diary.Silent)
	if err != nil {
		return nil, err
	}
	took, end, err := b.ended(ctx, id, at(silent))
	return []figure{{"busy without a beat: replaced", 300 * time.Second, 300*time.Second + 6*late, took}},
		errors.Join(err, wantEnd(end, agboxv1.IncarnationEndKind_INCARNATION_END_KIND_ZOMBIE))
}
