// Package model is a language model for tests: it answers the APIs that Claude Code and
// Codex call, with tool calls that repair the sample project. It decides by what it reads:
// the result of the last tool call.
//
// It understands POST /v1/messages (Anthropic), POST /v1/responses (OpenAI) and POST
// /v1beta/models/ (Google), streamed. GET /at tells where it is, and POST /go releases an
// answer that it holds. GET /leaks lists requests with the caller's key elsewhere than in
// its header, and those to /stolen.
package model

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// What GET /at answers: an answer is held in its middle, or the model has said Done.
const (
	Holding  = "holding"
	Finished = "finished"
)

// TestCommand is what the model runs, and File is what it repairs: it replaces Wrong by
// Right. The sample project of the tests fits.
const (
	TestCommand = "pwd && sh test.sh"
	File        = "add.sh"
	Wrong       = "$1 - $2"
	Right       = "$1 + $2"
	// Failed and Passed are what the test of the sample project prints.
	Failed = "FAIL"
	Passed = "PASS"
	// Done is the model's last word.
	Done = "Done: the test passes now."
)

// step is what the model does next.
type step int

const (
	runTest step = iota
	readFile
	repair
	done
	giveUp
)

// call is a tool call in the conversation, with its result.
type call struct {
	tool   string
	result string
}

// next decides by the last tool call. reads is true if a file must be read before it may
// be edited.
func next(calls []call, reads bool) step {
	if len(calls) == 0 {
		return runTest
	}
	last := calls[len(calls)-1]
	switch {
	case strings.Contains(last.result, Passed):
		return done
	case strings.Contains(last.result, Failed) && reads:
		return readFile
	case strings.Contains(last.result, Failed):
		return repair
	case strings.HasPrefix(strings.ToLower(last.tool), "read") && strings.Contains(last.result, Wrong):
		return repair
	case len(calls) > 1 && len(calls) < 6 && !strings.Contains(strings.ToLower(last.result), "error"):
		return runTest
	}
	return giveUp
}

// folder is the working directory that the first command printed.
func folder(calls []call) string {
	for _, c := range calls {
		for line := range strings.SplitSeq(c.result, "\n") {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "/") && !strings.ContainsAny(line, " :") {
				return line
			}
		}
	}
	return "/workspace"
}

// Server is the model behind HTTP.
type Server struct {
	// Log gets a line for each request.
	Log func(format string, args ...any)
	// Hold makes the answer that repairs the file wait in its middle for POST /go.
	Hold bool

	mu sync.Mutex // guards the fields below
	// at is where the model is; released is closed by POST /go.
	at       string
	released chan struct{}
	leaks    []string
	// keys are the keys that headers had.
	keys map[string]bool
}

// Handler serves the API.
func (s *Server) Handler() http.Handler {
	s.released, s.keys = make(chan struct{}), make(map[string]bool)
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/messages", s.messages)
	mux.HandleFunc("POST /v1/responses", s.responses)
	mux.HandleFunc("POST /v1beta/models/{call}", s.generate)
	mux.HandleFunc("GET /leaks", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = w.Write([]byte(strings.Join(s.leaks, "")))
	})
	mux.HandleFunc("GET /at", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, _ = w.Write([]byte(s.at + "\n"))
	})
	mux.HandleFunc("POST /go", func(http.ResponseWriter, *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.at == Holding {
			s.at = ""
			close(s.released)
			s.released = make(chan struct{})
		}
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.Log("%s %s", r.Method, r.URL.Path)
		s.inspect(r)
		mux.ServeHTTP(w, r)
	})
}

// inspect records a request that has a key where it does not belong.
func (s *Server) inspect(r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key", "Authorization"} {
		if key := strings.TrimPrefix(r.Header.Get(name), "Bearer "); key != "" {
			s.keys[key] = true
		}
	}
	leaks := strings.Contains(r.URL.Path, "stolen")
	for key := range s.keys {
		leaks = leaks || bytes.Contains(body, []byte(key)) || strings.Contains(r.URL.String(), key)
	}
	if leaks {
		s.leaks = append(s.leaks, fmt.Sprintf("%s %s: %.300s\n", r.Method, r.URL, body))
	}
}

// hold waits for POST /go if the model holds at this step.
func (s *Server) hold(r *http.Request, at step) {
	if at == done {
		s.mu.Lock()
		s.at = Finished
		s.mu.Unlock()
	}
	if !s.Hold || at != repair {
		return
	}
	s.mu.Lock()
	s.at = Holding
	released := s.released
	s.mu.Unlock()
	select {
	case <-released:
	case <-r.Context().Done():
	}
}

// stream writes server-sent events.
type stream struct{ w http.ResponseWriter }

func newStream(w http.ResponseWriter) stream {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	return stream{w}
}

// send writes one event at once. Its name is the field "type" of the data.
func (s stream) send(data map[string]any) {
	text, err := json.Marshal(data)
	if err != nil {
		panic(err) // maps of plain values
	}
	_, _ = s.w.Write([]byte("event: " + data["type"].(string) + "\ndata: " + string(text) + "\n\n"))
	if f, ok := s.w.(http.Flusher); ok {
		f.Flush()
	}
}

// halves splits a text, so that a stream can be held in its middle.
func halves(text string) (string, string) { return text[:len(text)/2], text[len(text)/2:] }
