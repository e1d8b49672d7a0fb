package agentsocket

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
)

// askHealth asks for the health of a program.
func askHealth(t *testing.T, p *peer, a *Access) (h gate.Health) {
	t.Helper()
	if _, err := fmt.Fprintf(p, "{\"op\":\"health\",\"token\":%q}\n", a.token); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(p).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Result gate.Health }
	if err := json.Unmarshal(line, &answer); err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return answer.Result
}

func TestHealthFollowsFromReports(t *testing.T) {
	s, dir := server(t)
	a := begin(t, s, "e")
	p := dial(t, a)
	if h := askHealth(t, p, a); h.State != "BOOTING" || !h.Alive || h.Ready {
		t.Errorf("before any report: %+v", h)
	}
	if _, err := dir.OpenJournal("e"); err == nil {
		t.Error("asking for the health is a report")
	}
	for _, row := range []struct {
		report       string
		alive, ready bool
	}{
		{`"op":"state","state":"HYDRATING"`, true, false},
		{`"op":"state","state":"READY"`, true, true},
		{`"op":"state","state":"EXECUTING"`, true, true},
		{`"op":"beat","metrics":{"event_loop_lag_seconds":5.5,"heapUsedMb":3}`, false, false},
		{`"op":"beat","metrics":{"event_loop_lag_seconds":0.5}`, true, true},
		{`"op":"beat","metrics":{"db_connections_available":0}`, false, false},
		{`"op":"beat","metrics":{"db_connections_available":1}`, true, true},
		{`"op":"beat","metrics":{"event_loop_lag_seconds":1e300}`, false, false},
		{`"op":"beat","metrics":{"event_loop_lag_seconds":-1e300}`, true, true},
		{`"op":"state","state":"DRAINING"`, true, false},
		{`"op":"state","state":"TERMINATED"`, false, false},
	} {
		if r := p.ask(`{%s,"token":%q}`, row.report, a.token); !r.OK {
			t.Fatalf("%s: %+v", row.report, r)
		}
		if h := askHealth(t, p, a); h.Alive != row.alive || h.Ready != row.ready {
			t.Errorf("after %s: %+v; want %v and %v", row.report, h, row.alive, row.ready)
		}
	}
	if r := s.Reported("e"); r.State != "TERMINATED" || r.Silent > time.Minute {
		t.Errorf("%+v", r)
	}
	s.End("e")
	if r := s.Reported("e"); r.State != "" {
		t.Errorf("after the end: %+v", r)
	}
	s.Ready("e", true) // it may end meanwhile
}

// nobody is an As that expects a user, and changes no rights.
func nobody(t *testing.T, want string) As {
	return func(user string, fn func() error) error {
		if user != want {
			t.Errorf("looked as %q; want %q", user, want)
		}
		return fn()
	}
}

func TestAUserWhomThereIsNotSeesNoFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := func(string, func() error) error { return errors.New("there is no such user") }
	if f, looked := Look(none, "x", []string{name}).Files[name]; !looked || f != (journal.File{}) {
		t.Errorf("it sees %+v", f)
	}
}

func TestALookSaysWhatIsThereAndWaitsForNothing(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, size := range map[string]int{"small": 3, "largest": maxSummed, "large": maxSummed + 1} {
		if err := os.WriteFile(at(name), []byte(strings.Repeat("x", size)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	files := Look(nobody(t, "agent"), "agent", []string{at("small"), at("largest"), at("large"), at("fifo"), at("none"), dir, "relative", "/dev/zero"}).Files
	if f := files[at("small")]; !f.Exists || f.Size != 3 || f.Modified == 0 || f.Inode == 0 || f.Sum != "cd2eb0837c9b4c962c22d2ff8b5441b7b45805887f051d39bf133b583baf6860" {
		t.Errorf("a small file: %+v", f)
	}
	if f := files[at("largest")]; f.Sum == "" {
		t.Errorf("a file of 1 MiB: %+v", f)
	}
	if f := files[at("large")]; !f.Exists || f.Sum != "" || f.Size != maxSummed+1 {
		t.Errorf("a larger file: %+v", f)
	}
	for _, name := range []string{at("fifo"), at("none"), dir, "relative", "/dev/zero"} {
		if f, looked := files[name]; !looked || f != (journal.File{}) {
			t.Errorf("%s: %+v", name, f)
		}
	}
}

func TestTheFilesOfAManifestAreWatched(t *testing.T) {
	w := watched{"/held"}.add([]byte(`{"manifest":[{"resource":"file:/a"},{"resource":"db"},{"resource":"file:/held"},{"resource":"file:/` + strings.Repeat("x", maxPath) + `"}]}`))
	if w = w.add([]byte(`[]`)); strings.Join(w, " ") != "/held /a" {
		t.Errorf("watched: %q", w)
	}
	for range 3 {
		w = w.add([]byte(`{"manifest":[` + strings.Repeat(`{"resource":"file:/b"},`, 200) + `{"resource":"file:/c"}]}`))
	}
	if len(w) != 4 {
		t.Errorf("watched: %q", w)
	}
}

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
