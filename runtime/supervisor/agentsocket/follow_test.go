package agentsocket

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// admitted is an incarnation of a server that does not listen.
func admitted(s *Server, execID string) *incarnation {
	in := &incarnation{server: s, execID: execID, sum: journal.Start(), done: make(chan struct{}), draining: make(chan struct{})}
	in.pulse = pulse{begun: time.Now(), lifecycle: journal.Booting}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byToken[execID], s.byExec[execID] = in, execID
	s.wakeLocked()
	return in
}

func reported(in *incarnation) {
	in.server.changed(in, func(p *pulse) { p.rows, p.changes = p.rows+1, p.changes+1 })
}

func beaten(in *incarnation) { in.server.beaten(in, time.Now()) }

func TestAFollowerGetsTheNewestNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{})
		one := admitted(s, "one")
		var mu sync.Mutex // guards got
		var got []News
		done := make(chan error, 1)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			done <- s.Follow(ctx, func(n News) error {
				mu.Lock()
				defer mu.Unlock()
				got = append(got, n)
				return nil
			})
		}()
		want := func(what string, news ...News) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if len(got) != len(news) {
				t.Fatalf("%s: %+v; want %+v", what, got, news)
			}
			for i := range news {
				news[i].Lifecycle = journal.Booting
				if !reflect.DeepEqual(got[i], news[i]) {
					t.Errorf("%s: %+v; want %+v", what, got[i], news[i])
				}
			}
			got = nil
		}
		want("at the beginning", News{ExecID: "one"})
		for range 5 {
			reported(one)
		}
		want("within the pause")
		time.Sleep(newsEvery)
		want("after the pause", News{ExecID: "one", Rows: 5, Silent: newsEvery})
		time.Sleep(time.Minute)
		two := admitted(s, "two")
		want("another one", News{ExecID: "two"})
		time.Sleep(time.Second)
		beaten(two)
		want("the first beat", News{ExecID: "two", Armed: true})
		time.Sleep(beatsEvery / 2)
		beaten(two)
		want("a beat too soon")
		time.Sleep(beatsEvery / 2)
		want("after a second", News{ExecID: "two", Armed: true, Silent: beatsEvery / 2})
		beaten(two)
		time.Sleep(beatsEvery / 2)
		reported(two)
		want("a row does not wait for a beat", News{ExecID: "two", Armed: true, Rows: 1, Silent: beatsEvery / 2})
		s.End("one")
		time.Sleep(time.Hour)
		want("silence is not told")
		stop()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
	})
}

func TestAFollowerForgetsAnIncarnationThatHasEnded(t *testing.T) {
	s := New(Config{})
	admitted(s, "one")
	admitted(s, "two")
	sent := make(map[*incarnation]told)
	if news, _ := s.unsent(sent, time.Now()); len(news) != 2 || len(sent) != 2 {
		t.Fatalf("%d news of 2 incarnations, and %d are remembered", len(news), len(sent))
	}
	s.End("one")
	if news, _ := s.unsent(sent, time.Now()); len(news) != 0 || len(sent) != 1 {
		t.Errorf("after the end of one of 2 there are %d news, and %d are remembered", len(news), len(sent))
	}
}

func TestFollowersAreBounded(t *testing.T) {
	s := New(Config{})
	done := make(chan error, maxFollowers)
	for range maxFollowers {
		go func() { done <- s.Follow(t.Context(), func(News) error { return nil }) }()
	}
	for s.countFollowers() < maxFollowers {
		time.Sleep(time.Millisecond)
	}
	none := func(News) error { return nil }
	if err := s.Follow(t.Context(), none); !errors.Is(err, ErrManyFollowers) {
		t.Errorf("one too many: %v", err)
	}
	s.Close()
	for range maxFollowers {
		if err := <-done; !errors.Is(err, ErrStopping) {
			t.Errorf("a follower ends with %v", err)
		}
	}
	if err := s.Follow(t.Context(), none); !errors.Is(err, ErrStopping) {
		t.Errorf("after the end: %v", err)
	}
}

func (s *Server) countFollowers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.followers)
}
