package supervisor_test

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// probed runs a script as an incarnation with probes that take no time.
func probed(id, script string, p *guestv1.Probes) *guestv1.StartRequest {
	req := sh(id, script)
	for _, probe := range []*guestv1.Probe{p.Liveness, p.Readiness, p.Startup} {
		if probe != nil && probe.PeriodMs == 0 {
			probe.PeriodMs, probe.TimeoutMs = 10, 30_000
		}
	}
	if p.Startup == nil {
		p.Startup = &guestv1.Probe{PeriodMs: 1000, TimeoutMs: 1000, Failures: 1000}
	}
	req.Agent = &guestv1.AgentBoot{AgentId: "a", Incarnation: 1, Probes: p}
	return req
}

func TestAFailedLivenessProbeKillsAtOnce(t *testing.T) {
	b := newBox(t)
	well := filepath.Join(b.dir, "well")
	if err := os.WriteFile(well, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.start(b.dial(), probed("e", `trap "" TERM; while :; do sleep 0.01; done`, &guestv1.Probes{
		Liveness: &guestv1.Probe{Command: []string{"sh", "-c", "echo x >> " + b.dir + "/asked; test -e " + well}, Failures: 3},
	}))
	eventually(t, "the program was asked several times", func() bool {
		raw, _ := os.ReadFile(filepath.Join(b.dir, "asked"))
		return len(raw) > 10
	})
	if err := os.Remove(well); err != nil {
		t.Fatal(err)
	}
	if r := b.end("e"); r.GetEndCause() != guestv1.EndCause_END_CAUSE_LIVENESS || r.GetSignal() != int32(syscall.SIGKILL) || r.GetOomKilled() {
		t.Error(r)
	}
}

// The program is given time after SIGTERM.
func TestAProgramThatIsNotReadyInTimeEnds(t *testing.T) {
	b := newBox(t)
	req := probed("e", `trap "exit 9" TERM; echo set; while :; do sleep 0.01; done`, &guestv1.Probes{
		Startup: &guestv1.Probe{Command: []string{"sh", "-c", "grep -q set " + filepath.Join(b.dir, "logs") + "/*; exit 1"}, PeriodMs: 500, TimeoutMs: 500, Failures: 2},
	})
	b.start(b.dial(), req)
	r := b.end("e")
	if r.GetEndCause() != guestv1.EndCause_END_CAUSE_STARTUP || r.GetExitCode() != 9 && r.GetSignal() != int32(syscall.SIGTERM) {
		t.Error(r)
	}
}

// What a probe has started is gone after the probe, however it hides.
func TestAProbeLeavesNothingBehind(t *testing.T) {
	b := newBox(t)
	pids := b.fifo("pids")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ready := make(chan bool, 1)
	c := b.dial()
	go func() {
		_ = c.Follow(ctx, func(n *guestv1.IncarnationNews) {
			if n.Ready != nil && n.GetReady() {
				select {
				case ready <- true:
				default:
				}
			}
		})
	}()
	script := `(setsid sh -c 'trap "" TERM; echo $$ > ` + b.dir + `/pids; while :; do sleep 1; done' >/dev/null 2>&1 &); `
	b.start(c, probed("passes", "sleep 1000", &guestv1.Probes{Readiness: &guestv1.Probe{Command: []string{"sh", "-c", script + "exit 0"}, Failures: 1}}))
	first := number(t, pids)
	eventually(t, "what a probe left is gone", func() bool { return !alive(first) })
	<-ready

	hung := probed("hangs", "sleep 1000", &guestv1.Probes{Readiness: &guestv1.Probe{Command: []string{"sh", "-c", script + "sleep 1000"}, PeriodMs: 10, TimeoutMs: 50, Failures: 1}})
	b.start(c, hung)
	for range 8 { // some are of the other probe
		pid := number(t, pids)
		eventually(t, "what a hung probe started is gone", func() bool { return !alive(pid) })
	}
	for _, id := range []string{"passes", "hangs"} {
		if _, err := c.Cancel(t.Context(), id, 0); err != nil {
			t.Fatal(err)
		}
		if r := b.end(id); r.GetEndCause() != byRequest {
			t.Error(r)
		}
	}
}

// A command is run as the program is: as its user, with its environment and folder.
func TestAProbeRunsAsTheProgram(t *testing.T) {
	b := newBox(t)
	req := probed("e", `while :; do sleep 0.01; done`, &guestv1.Probes{
		Readiness: &guestv1.Probe{Command: []string{"sh", "-c", `echo "$X $AGBOX_EXEC_ID $(pwd) $(id -u) ${AGBOX_TOKEN:+token}" > ` + b.dir + `/out.new && mv ` + b.dir + `/out.new ` + b.dir + `/out`}, Failures: 1},
	})
	req.Env, req.Cwd = []string{"X=y"}, "/usr"
	b.start(b.dial(), req)
	var got []byte
	eventually(t, "the probe ran", func() (ok bool) {
		var err error
		got, err = os.ReadFile(filepath.Join(b.dir, "out"))
		return err == nil
	})
	if want := "y e /usr " + strconv.Itoa(os.Getuid()) + " token"; strings.TrimSpace(string(got)) != want {
		t.Errorf("the probe got %q; want %q", got, want)
	}
}
