package probes

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// The figures of the requirements.
var (
	liveness  = Probe{Target: Target{Port: 8086, Path: "/healthz"}, Period: 10 * time.Second, Timeout: 5 * time.Second, Failures: 3}
	readiness = Probe{Target: Target{Port: 8086, Path: "/readyz"}, Period: 5 * time.Second, Timeout: 3 * time.Second, Failures: 2}
	startup   = Probe{Period: 5 * time.Second, Timeout: 5 * time.Second, Failures: 12}
)

// program answers probes from a moment on. Afterwards it hangs, fails or answers.
type program struct {
	// up is when its server answers, and reports when it reports that it is ready.
	up, reports time.Duration
	// from is when the two answers below begin to count. 0 means never.
	from           time.Duration
	alive, ready   Result
	hangs, unknown bool

	mu    sync.Mutex
	start time.Time
	log   []string
	ended chan struct{}
}

func (p *program) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.log = append(p.log, fmt.Sprintf("%v ", time.Since(p.start))+fmt.Sprintf(format, args...))
}

func (p *program) check(ctx context.Context, t Target) Result {
	since := time.Since(p.start)
	if p.unknown {
		return Unknown
	}
	if since < p.up || p.up < 0 {
		return Failed // refuses the connection
	}
	if p.from == 0 || since < p.from {
		return Passed
	}
	if p.hangs {
		<-ctx.Done()
		return Failed
	}
	if t.Path == "/readyz" {
		return p.ready
	}
	return p.alive
}

// run lets the program be probed for a time and returns what happened.
func (p *program) run(t *testing.T, rules Rules, d time.Duration) []string {
	t.Helper()
	p.start, p.ended = time.Now(), make(chan struct{})
	prober := Start(rules, Host{
		Check:    p.check,
		Reported: func() bool { return p.reports > 0 && time.Since(p.start) >= p.reports },
		Ready:    func(ready bool) { p.note("ready %v", ready) },
		End: func(c Cause) {
			p.note("%s", [...]string{NotStarted: "not started", NotAlive: "not alive"}[c])
			close(p.ended)
		},
	})
	select {
	case <-time.After(d):
	case <-p.ended:
	}
	prober.Stop()
	prober.Wait()
	synctest.Wait()
	return p.log
}

func TestWhatProbesDoAndWhen(t *testing.T) {
	all := Rules{Liveness: liveness, Readiness: readiness, Startup: startup}
	for _, row := range []struct {
		name  string
		in    *program
		rules Rules
		want  []string
	}{
		// The matrix of the requirements, with hydration until 12 s.
		{"executing", &program{}, all, []string{"0s ready true"}},
		{"hydrating, then executing", &program{from: -1, alive: Passed, ready: Failed}, all, nil},
		{"draining", &program{from: time.Minute, alive: Passed, ready: Failed}, all, []string{"0s ready true", "1m5s ready false"}},
		{"blocked", &program{from: time.Minute, hangs: true}, all, []string{"0s ready true", "1m8s ready false", "1m25s not alive"}},
		{"answers 503", &program{from: time.Minute, alive: Failed, ready: Failed}, all, []string{"0s ready true", "1m5s ready false", "1m20s not alive"}},
		{"blocked just after a check", &program{from: time.Minute + 1, hangs: true}, all, []string{"0s ready true", "1m13s ready false", "1m35s not alive"}},
		{"a check that cannot be made", &program{unknown: true}, Rules{Liveness: liveness, Readiness: readiness, Startup: Probe{Period: time.Hour, Timeout: 1, Failures: 2}}, nil},

		// Startup: 12 failures, 60 s. Liveness begins after it.
		{"never up", &program{up: -1}, all, []string{"1m0s not started"}},
		{"up late", &program{up: 58 * time.Second}, Rules{Liveness: liveness, Startup: startup}, []string{"1m0s not started"}},
		{"up in time", &program{up: 51 * time.Second}, all, []string{"55s ready true"}},
		{"up late is no failure of liveness", &program{up: 51 * time.Second, from: 56 * time.Second, alive: Failed, ready: Failed}, all, []string{"55s ready true", "1m5s ready false", "1m25s not alive"}},
		{"no bound without a probe of life", &program{up: -1}, Rules{Readiness: readiness, Startup: startup}, nil},

		// The same bound with ready: report and ready: probe.
		{"reported in time", &program{reports: 59 * time.Second}, Rules{Startup: startup, AwaitReport: true}, nil},
		{"reported late", &program{reports: 61 * time.Second}, Rules{Startup: startup, AwaitReport: true}, []string{"1m0s not started"}},
		{"answers, and reports nothing", &program{}, Rules{Liveness: liveness, Startup: startup, AwaitReport: true}, []string{"1m0s not started"}},
		{"never ready", &program{from: -1, alive: Passed, ready: Failed}, Rules{Liveness: liveness, Readiness: readiness, Startup: startup, AwaitReady: true}, []string{"1m0s not started"}},
		{"ready once", &program{from: time.Minute, alive: Passed, ready: Failed}, Rules{Liveness: liveness, Readiness: readiness, Startup: startup, AwaitReady: true}, []string{"0s ready true", "1m5s ready false"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := row.in.run(t, row.rules, 2*time.Minute); !slices.Equal(got, row.want) {
					t.Errorf("got %q; want %q", got, row.want)
				}
			})
		})
	}
}

func TestStopDoesNotEndTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &program{from: -1, hangs: true}
		if got := p.run(t, Rules{Liveness: liveness, Readiness: readiness, Startup: startup}, 59*time.Second); len(got) > 0 {
			t.Errorf("got %q", got)
		}
		var none *Prober
		none.Stop()
		none.Wait()
	})
}

func TestGauge(t *testing.T) {
	for _, row := range []struct {
		results string // p passed, f failed, u unknown
		well    bool
		downs   int
	}{
		{"", false, 0}, {"p", true, 0}, {"pff", true, 0}, {"pffpff", true, 0}, {"pffuf", false, 1}, {"pfff", false, 1}, {"pffff", false, 1}, {"pfffpfff", false, 2}, {"pfffp", true, 1}, {"u", false, 0}, {"fff", false, 1},
	} {
		var g Gauge
		downs := 0
		for _, r := range row.results {
			var down bool
			if g, down = g.Next(map[rune]Result{'p': Passed, 'f': Failed, 'u': Unknown}[r], 3); down {
				downs++
			}
		}
		if g.Well != row.well || downs != row.downs {
			t.Errorf("%s: well is %v, down %d times; want %v, %d", row.results, g.Well, downs, row.well, row.downs)
		}
	}
}

// TestAPanicOfACheckEndsNothing: the process has the commands of a whole sandbox.
func TestAPanicOfACheckEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := make(chan struct{}, 100)
		p := Start(Rules{Liveness: liveness, Readiness: readiness}, Host{
			Check:    func(context.Context, Target) Result { checks <- struct{}{}; panic("test") },
			Reported: func() bool { return true },
			Ready:    func(bool) { panic("test") },
			End:      func(Cause) { panic("test") },
		})
		for range 5 {
			<-checks
		}
		p.Stop()
		p.Wait()
	})
}
