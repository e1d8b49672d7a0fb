package agentsocket

import (
	"context"
	"errors"
	"time"

	"github.com/agbox/agbox/agents/gate"
)

const (
	// maxFollowers bounds the followers. A daemon is one; another one may be about to go.
	maxFollowers = 8
	// newsEvery is the pause after news were sent. What happens meanwhile is sent together.
	newsEvery = 100 * time.Millisecond
	// beatsEvery is the pause between two news of an incarnation of which only a beat
	// changed.
	beatsEvery = time.Second
)

// Errors of Follow.
var (
	// ErrManyFollowers means that others must end first.
	ErrManyFollowers = errors.New("too many connections follow the agents of this sandbox; close one")
	// ErrStopping means that the supervisor stops.
	ErrStopping = errors.New("the supervisor stops")
)

// News is what is known about a running incarnation.
type News struct {
	ExecID string
	// Rows is the number of rows of its journal that were acknowledged.
	Rows uint64
	// Silent is the time since its last beat or, without one, since its start. Armed means
	// that there was a beat.
	Silent time.Duration
	Armed  bool
	// Lifecycle is the newest state that it has reported.
	Lifecycle string
	// Ready is the result of its readiness probe, or nil.
	Ready *bool
	// Hung means that it is silent and its processes do nothing.
	Hung bool
	// PauseMark is that of the newest Pause.
	PauseMark uint64
	// Children and Spent are what the incarnation was told of the budget of children.
	Children, Spent gate.Amount
	// HeapUsedMB is the size of its heap in MB, as a beat has it, or nil.
	HeapUsedMB *uint64
	// Requests are those that were not told before, and Open the numbers of all open ones.
	Requests []Request
	Open     []uint64
}

// news describes an incarnation. Server.mu is held.
func (in *incarnation) news(now time.Time) News {
	p, since := in.pulse, in.pulse.begun
	if !p.beat.IsZero() {
		since = p.beat
	}
	return News{
		ExecID: in.execID, Rows: p.rows, Silent: max(0, now.Sub(since)), Armed: !p.beat.IsZero(), Lifecycle: p.lifecycle,
		Ready: p.ready, Hung: p.hung, Open: in.openRequests(), PauseMark: in.pause.Mark, Children: in.bounds.Children, Spent: in.bounds.Spent, HeapUsedMB: p.heap,
	}
}

// told is what a follower was told about an incarnation.
type told struct {
	changes, beats uint64
	at             time.Time
	// request is the number of the newest request.
	request uint64
}

// Follow sends the news of each running incarnation, then those of each that begins or
// changes, until send fails, ctx ends or the server is closed. It runs in the goroutine of
// its caller and starts none.
func (s *Server) Follow(ctx context.Context, send func(News) error) error {
	f, err := s.subscribe()
	if err != nil {
		return err
	}
	defer s.unsubscribe(f)
	sent := make(map[*incarnation]told)
	for {
		news, again := s.unsent(sent, time.Now())
		for _, n := range news {
			if err := send(n); err != nil {
				return err
			}
		}
		if len(news) > 0 {
			err = s.pause(ctx, f.asked, newsEvery)
		} else {
			err = s.pause(ctx, f.changed, again)
		}
		if err != nil {
			return err
		}
	}
}

// pause waits until something is sent, at most for the time; 0 means for ever.
func (s *Server) pause(ctx context.Context, wake <-chan struct{}, length time.Duration) error {
	var over <-chan time.Time
	if length > 0 {
		timer := time.NewTimer(length)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-wake:
	case <-over:
	case <-s.closing:
		return ErrStopping
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// unsent returns the news that a follower has not got, and remembers them as sent. again is
// the time until a beat is due that it held back, or 0.
func (s *Server) unsent(sent map[*incarnation]told, now time.Time) (news []News, again time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, in := range s.byToken {
		before, known := sent[in]
		switch p := in.pulse; {
		case known && before.changes == p.changes && before.beats == p.beats:
			continue
		case known && before.changes == p.changes && now.Sub(before.at) < beatsEvery:
			if left := beatsEvery - now.Sub(before.at); again == 0 || left < again {
				again = left
			}
			continue
		}
		for more := true; more; {
			n := in.news(now)
			n.Requests, more = in.after(before.request)
			if len(n.Requests) > 0 {
				before.request = n.Requests[len(n.Requests)-1].Number
			}
			news = append(news, n)
		}
		sent[in] = told{in.pulse.changes, in.pulse.beats, now, before.request}
	}
	for in := range sent {
		if in.pulse.ended {
			delete(sent, in)
		}
	}
	return news, again
}

// subscribe makes a follower.
func (s *Server) subscribe() (*follower, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, ErrStopping
	case len(s.followers) >= maxFollowers:
		return nil, ErrManyFollowers
	}
	f := &follower{make(chan struct{}, 1), make(chan struct{}, 1)}
	s.followers[f] = struct{}{}
	return f, nil
}

func (s *Server) unsubscribe(f *follower) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
}

// changed changes the pulse of an incarnation and wakes the followers.
func (s *Server) changed(in *incarnation, change func(*pulse)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&in.pulse)
	s.wakeLocked()
}

func (s *Server) wakeLocked() {
	for f := range s.followers {
		signal(f.changed)
	}
}

func signal(wake chan<- struct{}) {
	select {
	case wake <- struct{}{}:
	default: // it has not handled the last one yet
	}
}

func (r *requests) openRequests() []uint64 {
	var numbers []uint64
	for _, o := range r.open {
		numbers = append(numbers, o.Number)
	}
	return numbers
}

// after returns the requests after that number that may be told together, and whether there
// are more.
func (r *requests) after(number uint64) (some []Request, more bool) {
	size := 0
	for _, o := range r.open {
		if o.Number <= number {
			continue
		}
		if size += len(o.Body); size > maxAsked && len(some) > 0 {
			return some, true
		}
		some = append(some, o.Request)
	}
	return some, false
}
