package agentsocket

import (
	"bufio"
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// askHealth asks for the health of a program.
func askHealth(t *testing.T, p *peer, a *Access) (h health) {
	t.Helper()
	if _, err := fmt.Fprintf(p, "{\"op\":\"health\",\"token\":%q}\n", a.token); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(p).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var answer struct{ Result health }
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
