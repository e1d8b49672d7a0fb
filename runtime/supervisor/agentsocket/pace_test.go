package agentsocket

import (
	"testing"
	"time"
)

func TestRequestsAreHeldBackAfterABurst(t *testing.T) {
	var p pace
	now := time.Now()
	for n := range requestBurst {
		if wait := p.take(now); wait != 0 {
			t.Fatalf("request %d waits %v", n, wait)
		}
	}
	for n := range 10 {
		if wait, want := p.take(now), time.Duration(n+1)*requestEvery; wait != want {
			t.Errorf("%d after the burst: %v; want %v", n, wait, want)
		}
	}
	if wait := p.take(now.Add(11 * requestEvery)); wait != 0 {
		t.Errorf("at the pace: %v", wait)
	}
	if wait := p.take(now.Add(time.Hour)); wait != 0 {
		t.Errorf("after a rest: %v", wait)
	}
}

func FuzzBodyOf(f *testing.F) {
	f.Add([]byte(`{"op":"spawn","id":1,"token":"t","command":["x"],"timeout_ms":5}`))
	f.Add([]byte(`{"op":"recv","Token":"x","after":18446744073709551615,"\u0000":null}`))
	f.Add([]byte(`{"a":1,"a":2}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		body, err := bodyOf(line)
		if err != nil {
			return
		}
		if len(body) > maxAsked {
			t.Fatalf("%d bytes are told", len(body))
		}
		if again, err := bodyOf(body); err != nil || string(again) != string(body) {
			t.Fatalf("%s became %s, then %s, %v", line, body, again, err)
		}
	})
}
