package agentsocket

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// patient is an incarnation whose news a test reads.
type patient struct {
	t  *testing.T
	s  *Server
	in *incarnation

	mu sync.Mutex // guards the fields below
	// does is what its processes do.
	does Activity
	news []News
}

func newPatient(t *testing.T, beat Heartbeat) *patient {
	p := &patient{t: t}
	p.s = New(Config{Look: func(string) Activity {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.does
	}})
	p.in = &incarnation{server: p.s, execID: "e", sum: journal.Start(), heartbeat: beat, done: make(chan struct{}), draining: make(chan struct{})}
	p.in.pulse.begun = time.Now()
	p.s.mu.Lock()
	p.s.byToken["token"], p.s.byExec["e"] = p.in, "token"
	p.s.measureLocked(p.in, time.Now())
	p.s.mu.Unlock()
	var following sync.WaitGroup
	following.Go(func() {
		_ = p.s.Follow(t.Context(), func(n News) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.news = append(p.news, n)
			return nil
		})
	})
	t.Cleanup(func() { p.s.Close(); following.Wait() })
	p.told()
	return p
}

// told returns the silences of the news since the last call, in seconds, negative if hung.
func (p *patient) told() (silences []float64) {
	time.Sleep(newsEvery)
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.news {
		if n.Hung {
			silences = append(silences, -n.Silent.Seconds())
		} else {
			silences = append(silences, n.Silent.Seconds())
		}
	}
	p.news = nil
	return silences
}

func (p *patient) want(what string, silences ...float64) {
	p.t.Helper()
	if got := p.told(); !slices.Equal(got, silences) {
		p.t.Errorf("%s: news at %v s of silence; want %v", what, got, silences)
	}
}

// set says what the processes do from now on.
func (p *patient) set(does Activity) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.does = does
}

func ladder(required bool) Heartbeat {
	return Heartbeat{
		Silences: []time.Duration{17 * time.Second, 30 * time.Second, 45 * time.Second, 91 * time.Second, 5 * time.Minute},
		Required: required, Interval: 15 * time.Second, HungAfter: 91 * time.Second,
	}
}

func TestEachSilenceIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatient(t, ladder(false))
		time.Sleep(time.Hour)
		p.want("a program that never beats")
		beaten(p.in)
		p.want("the first beat", 0)
		time.Sleep(16 * time.Second)
		p.want("before a beat is missed")
		time.Sleep(20 * time.Second)
		p.want("two levels later", 17, 30)
		beaten(p.in)
		p.want("a beat after silence", 0)
		time.Sleep(20 * time.Second)
		p.want("silence again", 17)
		p.s.End("e")
		time.Sleep(time.Hour)
		p.want("after the end")
	})
}

func TestProcessesOfASilentProgramAreLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatient(t, ladder(true))
		p.set(Activity{Work: 1})
		time.Sleep(100 * time.Second)
		p.want("looked at once", 17, 30, 45, 91)
		time.Sleep(10 * time.Second)
		p.want("nothing was done for an interval", -106)
		p.set(Activity{Work: 2})
		time.Sleep(15 * time.Second)
		p.want("it works again", 121)
		p.set(Activity{Stopped: true, Work: 3})
		time.Sleep(15 * time.Second)
		p.want("it is stopped", -136)
		beaten(p.in)
		p.want("it beats", 0)
		time.Sleep(90 * time.Second)
		p.want("silence again", 17, 30, 45)
		time.Sleep(2 * time.Second)
		if got := p.told(); got[len(got)-1] > -91 {
			t.Errorf("it is stopped from the first look on: %v", got)
		}
		time.Sleep(5 * time.Minute)
		p.want("the last silence", -300)
	})
}

func TestTheServerDoesNotEndBeforeItsLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatient(t, ladder(true))
		time.Sleep(92 * time.Second)
		p.s.Close() // synctest fails if a goroutine stays
	})
}

func TestAnUnhealthyIncarnationIsAskedForACheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPatient(t, Heartbeat{Silences: []time.Duration{17 * time.Second, 30 * time.Second, 45 * time.Second}})
		asked := func(want bool) {
			t.Helper()
			synctest.Wait()
			if got := p.s.orders(p.in, time.Now()).Checkpoint; got != want {
				t.Errorf("after %v it is asked for a checkpoint: %v", time.Since(p.in.pulse.begun), got)
			}
		}
		p.s.beaten(p.in, time.Now())
		time.Sleep(29 * time.Second) // in a bubble
		asked(false)
		time.Sleep(time.Second)
		asked(true)
		p.s.beaten(p.in, time.Now())
		asked(true)
	})
}

func TestACheckpointIsAskedForUntilThereIsOne(t *testing.T) {
	s, _ := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	s.changed(s.of("e"), func(p *pulse) { p.save = true })
	for _, row := range []struct {
		line          string
		asked, stored bool
	}{
		{`"op":"beat"`, true, false}, {`"op":"turn"`, true, false}, {`"op":"turn","bytes":3`, false, true}, {`"op":"turn"`, false, false},
	} {
		body := ""
		if row.stored {
			body = "\n{}"
		}
		r := p.ask(`{%s,"token":%q}%s`, row.line, a.token, body)
		if !r.OK || r.Checkpoint != row.asked || (row.line == `"op":"beat"`) != (r.Result.Stored == nil) || r.Result.Stored != nil && (*r.Result.Stored > 0) != row.stored {
			t.Errorf("%s gets %+v", row.line, r)
		}
	}
}
