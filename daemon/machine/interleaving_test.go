package machine

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// TestAnyInterleavingComesToALegalRest mixes the loop's steps with requests, execs that
// end, engines that kill or lose the container, and daemon crashes. Afterwards the loop
// comes to rest in a state that matches the last request.
func TestAnyInterleavingComesToALegalRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := &play{t: t, record: Fold(Record{}, event(1, accepted, ""))}
		p.rules = Rules{ReadyWithin: time.Minute, Retry: time.Second, Revival: agboxv1.RevivalPolicy(rapid.IntRange(0, 3).Draw(t, "policy"))}
		p.rules.PendingRecovery = PendingRecovery(rapid.IntRange(0, 1).Draw(t, "recovery"))
		p.world.strict = true
		p.world.copies = rapid.Bool().Draw(t, "copies")
		if rapid.Bool().Draw(t, "prepare") {
			p.rules.Prepare, p.world.prepares, p.world.copies = 2, 2, true
		}
		p.rules.Copies = p.world.copies
		p.world.now, p.world.ran = t0.Add(time.Hour), new(map[string]bool)
		if rapid.Bool().Draw(t, "services") {
			p.rules.Services, p.rules.PostCreate, p.world.served = someServices, 2, true
		}
		for range rapid.IntRange(0, 60).Draw(t, "moves") {
			p.interfere()
			for range rapid.IntRange(0, 8).Draw(t, "steps") {
				p.step()
			}
		}
		for range 256 {
			if !p.step() {
				continue
			}
			if p.world.pass(t, &p.record, p.rest) {
				continue
			}
			p.world.check(t, p.record, p.rules)
			return
		}
		t.Fatalf("no rest; record %+v, world %+v", p.record, p.world)
	})
}

// play is a simulated sandbox with random events.
type play struct {
	t      *rapid.T
	record Record
	world  world
	rules  Rules
	rest   Step // the newest one
}

// step calls Next once and executes the step. It executes a verb twice: the second time
// must change nothing. It returns true at rest.
func (p *play) step() bool {
	step := Next(p.record, p.world.observe(), p.rules, p.world.now)
	if step.Do == Rest {
		p.rest = step
		// The next round starts with a fresh look, like the loop's.
		atRest := p.world.looked || p.record.State == Stopped || p.record.Over() || p.record.State == Failed
		p.world.looked, p.world.tried, p.world.copied = false, false, false
		return atRest
	}
	pending := p.record.PendingSequence
	p.record = p.world.apply(p.t, p.record, step)
	if step.Do != Emit {
		record, once := p.record, p.world
		p.record = p.world.apply(p.t, p.record, step)
		if p.world != once || !equal(p.record, record) {
			p.t.Fatalf("%s done twice differs from once:\n%+v %+v\n%+v %+v", step.Do, record, once, p.record, p.world)
		}
	}
	if p.record.PendingSequence != pending {
		p.world.startedAt, p.world.inherited = time.Time{}, false // a new PENDING has not been started
	}
	return false
}

// interfere causes one random event that does not come from the loop.
func (p *play) interfere() {
	what := rapid.SampledFrom([]string{
		"exec", "exec", "exec", "exec", "request", "request", "die", "crash", "vanish", "late network", "nothing",
		"pass", "pass", "pass", "pass", "pass", "pass", "service dies", "service vanishes", "service sickens", "service heals", "service is started",
	}).Draw(p.t, "interference")
	switch what {
	case "request":
		p.append(rapid.SampledFrom([]agboxv1.EventType{stopReq, stopReq, stopReq, resume, resume, resume, resume, delReq}).Draw(p.t, "request"), "")
	case "nothing":
	case "exec":
		if p.record.State == Pending {
			return // a caller's exec is refused, and hooks belong to the loop
		}
		p.append(rapid.SampledFrom([]agboxv1.EventType{started, started, finished}).Draw(p.t, "exec"), rapid.SampledFrom([]string{"a", "b"}).Draw(p.t, "id"))
	case "die":
		if p.world.container == runtime.StateRunning {
			p.world.container, p.world.connected = runtime.StateExited, false
		}
	case "vanish":
		p.world.container, p.world.connected = "", false
	case "late network":
		p.world.spare = p.world.network
	case "crash":
		p.world.crash()
	case "pass":
		p.world.pass(p.t, &p.record, p.rest)
	default:
		p.harm(what, &p.world.services[rapid.IntRange(0, len(p.world.services)-1).Draw(p.t, "service")])
	}
	p.world.looked, p.world.tried, p.world.copied = false, false, false
}

// harm changes a service without the daemon.
func (p *play) harm(what string, s *worldService) {
	runs := s.state == runtime.StateRunning
	switch {
	case what == "service dies" && runs:
		s.state = runtime.StateExited
	case what == "service vanishes":
		s.state = ""
	case what == "service sickens" && runs:
		s.health = runtime.Unhealthy
	case what == "service heals" && runs:
		s.health = runtime.Healthy
	case what == "service is started" && s.state == runtime.StateExited && (p.record.State == Pending || p.record.State == Ready):
		s.state, s.health = runtime.StateRunning, runtime.HealthStarting
	}
}

// append adds an event if it is legal, as the ledger does.
func (p *play) append(typ agboxv1.EventType, execID string) {
	if Legal(p.record, typ) {
		p.record = Fold(p.record, event(p.record.LastSequence+1, typ, execID))
		if typ == resume {
			p.world.inherited, p.world.startedAt = false, time.Time{}
		}
	}
}
