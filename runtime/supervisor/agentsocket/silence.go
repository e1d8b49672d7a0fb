package agentsocket

import (
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// Heartbeat says what is done about an incarnation that does not beat.
type Heartbeat struct {
	// Silences are the times of silence at which followers are told, ascending.
	Silences []time.Duration
	// Required means that the silence counts from the start. Otherwise the first beat begins
	// it.
	Required bool
	// Interval is the time between two beats. HungAfter is the silence at which the processes
	// are looked at.
	Interval, HungAfter time.Duration
	// Durable is how often the newest beat is written to disk.
	Durable time.Duration
}

// unhealthy is the number of Heartbeat.Silences after which an incarnation is UNHEALTHY, and is
// asked for a checkpoint: it may be lost soon.
const unhealthy = 2

// Activity is what the processes of an exec do.
type Activity struct {
	// Stopped means that none of them can run: all are stopped or zombies, or there is none.
	Stopped bool
	// Work changes when one of them uses the processor, reads or writes, begins or ends.
	Work uint64
}

// beaten notes a beat.
func (s *Server) beaten(in *incarnation, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &in.pulse
	first, late := p.beat.IsZero(), p.silences > 0
	p.beat, p.beats, p.hung = now, p.beats+1, false
	if first || late { // otherwise the timer notices the beat when it fires
		s.measureLocked(in, now)
	}
	s.wakeLocked()
}

// keepBeat writes a beat to disk if the one that is there is old. A beat that cannot be
// written counts nevertheless: followers are told. mu is held.
func (in *incarnation) keepBeat(now time.Time) {
	if !in.kept.IsZero() && now.Sub(in.kept) < in.heartbeat.Durable {
		return
	}
	record, err := journal.LastBeat{At: now.UnixMilli(), Lifecycle: in.sum.Lifecycle}.Encode()
	if err != nil {
		return
	}
	in.server.cfg.Disk(func() {
		if in.beats == nil {
			if in.beats, err = in.server.cfg.Logs.CreateBeat(in.execID, in.server.cfg.Owner); err != nil {
				return
			}
		}
		err = in.beats.Write(record)
	})
	if err == nil {
		in.kept = now
	}
}

// measureLocked tells the followers if an incarnation has begun or ended to be silent for
// long, and sets the timer for the next silence.
func (s *Server) measureLocked(in *incarnation, now time.Time) {
	if in.alarm != nil {
		in.alarm.Stop()
	}
	if p := &in.pulse; s.closed || p.ended || p.beat.IsZero() && !in.heartbeat.Required {
		return
	}
	silent, lasted := in.news(now).Silent, 0
	for lasted < len(in.heartbeat.Silences) && silent >= in.heartbeat.Silences[lasted] {
		lasted++
	}
	if p := &in.pulse; p.silences != lasted {
		p.save = p.save || lasted >= unhealthy
		p.silences = lasted
		p.changes++
		s.wakeLocked()
	}
	if in.heartbeat.HungAfter > 0 && silent >= in.heartbeat.HungAfter && !in.probing {
		in.probing = true
		s.work.Go(func() { s.probe(in) })
	}
	if lasted == len(in.heartbeat.Silences) {
		return
	}
	// The function of the timer only measures, so nobody waits for it.
	in.alarm = time.AfterFunc(in.heartbeat.Silences[lasted]-silent, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.measureLocked(in, time.Now())
	})
}

// probe looks at the processes of a silent incarnation once in an interval between beats,
// until it beats or ends. Close waits for it.
func (s *Server) probe(in *incarnation) {
	var before Activity
	for first := true; ; first = false {
		now := s.cfg.Look(in.execID)
		if !s.probed(in, now.Stopped || !first && now.Work == before.Work) {
			return
		}
		before = now
		pause := time.NewTimer(in.heartbeat.Interval)
		select {
		case <-pause.C:
		case <-in.done:
			pause.Stop()
			return
		case <-s.closing:
			pause.Stop()
			return
		}
	}
}

// probed notes what a look at the processes gave. It returns false if there is no reason
// for another one.
func (s *Server) probed(in *incarnation, hung bool) (again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &in.pulse
	if s.closed || p.ended || in.news(time.Now()).Silent < in.heartbeat.HungAfter {
		in.probing = false
		return false
	}
	if p.hung != hung {
		p.hung = hung
		p.changes++
		s.wakeLocked()
	}
	return true
}
