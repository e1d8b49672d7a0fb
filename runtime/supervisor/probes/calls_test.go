package probes

import (
	"testing"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// The figures of the requirements.
var limits = Limits{
	Connect: 30 * time.Second, Response: 120 * time.Second, LLMTotal: 300 * time.Second, LLMChunk: 60 * time.Second, Tool: 60 * time.Second,
	Tools: map[string]time.Duration{"git_clone": 300 * time.Second, "file_read": 10 * time.Second, "forever": 0},
}

// The scenarios are those of the requirements. Times are in seconds since the begin.
func TestDeadlines(t *testing.T) {
	const never = -1
	type step struct {
		at    int
		chunk bool
	}
	for _, row := range []struct {
		name, kind, call string
		progress         []step
		at               int
		reason           string
	}{
		{"a dead host", journal.Network, "", nil, 30, ConnectTimeout},
		{"a hung webhook", journal.Network, "", []step{{1, false}}, 120, ResponseTimeout},
		{"parts of an answer do not prolong a call to the network", journal.Network, "", []step{{1, true}, {100, true}}, 120, ResponseTimeout},
		{"no connection to a model", journal.LLM, "", nil, 30, ConnectTimeout},
		{"a model thinks", journal.LLM, "", []step{{1, false}}, 300, TotalTimeout},
		{"a model thinks for 90 s and then answers", journal.LLM, "", []step{{1, false}, {90, true}}, 150, ChunkTimeout},
		{"a long stream", journal.LLM, "", []step{{1, true}, {60, true}, {119, true}, {170, true}}, 230, ChunkTimeout},
		{"a stream that ends at the total", journal.LLM, "", []step{{250, true}}, 300, TotalTimeout},
		{"a stream that stalls", journal.LLM, "", []step{{1, true}, {5, true}}, 65, ChunkTimeout},
		{"a connection after the first part changes nothing", journal.LLM, "", []step{{5, true}, {20, false}}, 65, ChunkTimeout},
		{"a tool", journal.Tool, "kubectl", nil, 60, ToolTimeout},
		{"a named tool", journal.Tool, "git_clone", []step{{200, true}}, 300, ToolTimeout},
		{"a tool without a limit", journal.Tool, "forever", nil, never, ""},
	} {
		begun := time.Now()
		c := Call{Kind: row.kind, Name: row.call, Begun: begun}
		for _, p := range row.progress {
			c = c.Progress(begun.Add(time.Duration(p.at)*time.Second), p.chunk)
		}
		at, reason := c.Deadline(limits)
		got := never
		if !at.IsZero() {
			got = int(at.Sub(begun).Seconds())
		}
		if got != row.at || reason != row.reason {
			t.Errorf("%s: %d s, %s; want %d s, %s", row.name, got, reason, row.at, row.reason)
		}
	}
	if at, _ := (Call{Kind: journal.LLM, Begun: time.Now()}).Deadline(Limits{}); !at.IsZero() {
		t.Errorf("without limits: %v", at)
	}
}
