package probes

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
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

func TestHTTPStatus(t *testing.T) {
	var got http.Request
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = *r
		codes := map[string]int{"/healthz": 200, "/readyz": 503, "/moved": 302, "/huge": 200}
		w.WriteHeader(codes[r.URL.Path])
		if r.URL.Path == "/huge" {
			_, _ = io.Copy(w, iotest.TimeoutReader(strings.NewReader(strings.Repeat("x", 1<<20))))
		}
	}))
	defer server.Close()
	port := uint16(server.Listener.Addr().(*net.TCPAddr).Port)
	for path, want := range map[string]Result{"/healthz": Passed, "/readyz": Failed, "/moved": Passed, "/huge": Passed, "/healthz?x=1": Passed} {
		if r := HTTP(t.Context(), port, path); r != want || got.Method != http.MethodGet || got.RequestURI != path {
			t.Errorf("%s: %v, request %s %s", path, r, got.Method, got.RequestURI)
		}
	}
	server.Close()
	if r := HTTP(t.Context(), port, "/healthz"); r != Failed {
		t.Errorf("without a server: %v", r)
	}
}

// answering listens and answers every connection with the text. It keeps it open, if hold
// is set.
func answering(t *testing.T, text string, hold bool) uint16 {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = bufio.NewReader(c).ReadString('\n')
			_, _ = io.WriteString(c, text)
			if hold {
				_, _ = io.Copy(io.Discard, c)
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func TestAnswersThatAreNoHTTP(t *testing.T) {
	for text, want := range map[string]Result{
		"HTTP/1.1 200 OK\r\n\r\n": Passed, "HTTP/1.0 204\r\n": Passed, "HTTP/1.0 399\n": Passed,
		"HTTP/1.1 400 No\r\n\r\n": Failed, "HTTP/1.1 199 x\r\n": Failed, "HTTP/1.1 2000 OK\r\n": Failed, "HTTP/1.1 20\n": Failed, "HTTP/1.1 200": Failed, "HTTP/2.0 200 OK\n": Failed,
		"HTTP/1.1 -20 OK\n": Failed, "HTTP/1.1 2x0 OK\n": Failed, "\n": Failed, "": Failed, "SSH-2.0-x\r\n": Failed, strings.Repeat("HTTP/1.1 ", 1000) + "\n": Failed,
	} {
		if r := HTTP(t.Context(), answering(t, text, false), "/"); r != want {
			t.Errorf("%.40q: %v; want %v", text, r, want)
		}
	}
}

func TestAServerThatHangs(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	port := answering(t, "HTTP/1.1 20", true)
	result := make(chan Result)
	go func() { result <- HTTP(ctx, port, "/") }()
	cancel()
	if r := <-result; r != Failed {
		t.Errorf("a server that never ends its status line: %v", r)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if r := HTTP(ctx, answering(t, "HTTP/1.1 200 OK\r\n\r\nand then", true), "/"); r != Passed {
		t.Errorf("a server that keeps the connection open: %v", r)
	}
}

func FuzzStatusOf(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\n")
	f.Add("HTTP/1.0 204\n")
	f.Add("HTTP/1.1 99999\n")
	f.Fuzz(func(t *testing.T, line string) {
		if code := statusOf(line); code < 0 || code > 999 || code != 0 && !strings.HasPrefix(line, "HTTP/1.") {
			t.Errorf("%q: %d", line, code)
		}
	})
}
