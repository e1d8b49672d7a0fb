package engine

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Fault is what the proxy does to one request.
type Fault uint8

// The faults.
const (
	// Pass forwards request and reply.
	Pass Fault = iota
	// Hang never answers and keeps the connection open. The engine does not get the
	// request.
	Hang
	// LoseReply forwards the request, waits for the reply, and then closes the connection
	// instead of sending the reply.
	LoseReply
	// LoseRequest closes the connection. The engine does not get the request.
	LoseRequest
	// CutBody sends half of the reply's body and closes the connection.
	CutBody
	// Refuse answers 503.
	Refuse
)

// Proxy is a proxy in front of an engine, on a Unix socket.
type Proxy struct {
	socket   string
	upstream http.RoundTripper
	server   *http.Server
	served   chan error
	// gone is closed when the proxy ends, which ends all hanging requests.
	gone chan struct{}

	// mu guards the fields below. It is never held across I/O.
	mu      sync.Mutex
	choose  func(*http.Request) Fault
	version string
	seen    []string
	streams map[*stream]struct{}
	// held is closed to end the hanging requests without an answer.
	held chan struct{}
}

// NewProxy starts a proxy for the engine that listens on the socket. It ends with the
// test.
func NewProxy(t testing.TB, upstream string) *Proxy {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "abp")
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", upstream)
		},
		MaxIdleConnsPerHost: 32,
	}
	p := &Proxy{
		socket: filepath.Join(dir, "docker.sock"), upstream: transport,
		served: make(chan error, 1), gone: make(chan struct{}), held: make(chan struct{}),
		streams: make(map[*stream]struct{}),
	}
	lis, err := net.Listen("unix", p.socket)
	if err != nil {
		t.Fatal(err)
	}
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: patience}
	go func() { p.served <- p.server.Serve(lis) }() // waited for below
	t.Cleanup(func() {
		close(p.gone)
		_ = p.server.Close()
		if err := <-p.served; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the proxy before the engine ended: %v", err)
		}
		transport.CloseIdleConnections()
		_ = os.RemoveAll(dir)
	})
	return p
}

// Host returns the proxy's address in the form of DOCKER_HOST.
func (p *Proxy) Host() string { return "unix://" + p.socket }

// Choose sets the function that chooses the fault for every request from now on; nil
// means Pass. Path returns what a request is about. Many goroutines call f.
func (p *Proxy) Choose(f func(*http.Request) Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.choose = f
}

// DropHeld closes the connections of all hanging requests.
func (p *Proxy) DropHeld() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.held)
	p.held = make(chan struct{})
}

// SetVersion makes the engine appear to have the given newest API version, for example
// "1.40": it reports that version and refuses calls of newer ones.
func (p *Proxy) SetVersion(version string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.version = version
}

// Requests returns the requests so far: method and path without the API version.
func (p *Proxy) Requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.seen...)
}

var versioned = regexp.MustCompile(`^/v(1\.\d+)/`)

// Path returns the path of a request to an engine without the API version.
func Path(r *http.Request) string {
	return versioned.ReplaceAllString(r.URL.Path, "/")
}

// ServeHTTP forwards a request, or applies a fault.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Method+" "+Path(r))
	fault, version, held := Pass, p.version, p.held
	if p.choose != nil {
		fault = p.choose(r)
	}
	p.mu.Unlock()

	switch fault {
	case Hang:
		select {
		case <-held:
		case <-p.gone:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case LoseRequest:
		panic(http.ErrAbortHandler)
	case Refuse:
		_, _ = io.Copy(io.Discard, r.Body) // otherwise a client that is still writing would not get the reply
		http.Error(w, `{"message":"the engine is not there"}`, http.StatusServiceUnavailable)
		return
	}
	if asked := versioned.FindStringSubmatch(r.URL.Path); version != "" && asked != nil && older(version, asked[1]) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprintf(w, `{"message":"client version %s is too new. Maximum supported API version is %s"}`, asked[1], version)
		return
	}
	p.forward(w, r, fault, version)
}

// older compares versions of the form "1.41".
func older(a, b string) bool {
	var minorA, minorB int
	_, _ = fmt.Sscanf(a, "1.%d", &minorA)
	_, _ = fmt.Sscanf(b, "1.%d", &minorB)
	return minorA < minorB
}

func (p *Proxy) forward(w http.ResponseWriter, r *http.Request, fault Fault, version string) {
	ctx := r.Context()
	if fault == LoseReply {
		// The client may cancel, but the engine must complete the request.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
	}
	out := r.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.RequestURI = "http", "engine", ""
	reply, err := p.upstream.RoundTrip(out)
	if err != nil {
		panic(http.ErrAbortHandler) // as if the engine itself had gone
	}
	defer reply.Body.Close()
	if fault == LoseReply {
		_, _ = io.Copy(io.Discard, reply.Body)
		panic(http.ErrAbortHandler)
	}
	for key, values := range reply.Header {
		w.Header()[key] = values
	}
	if version != "" && reply.Header.Get("Api-Version") != "" {
		w.Header().Set("Api-Version", version)
	}
	switch {
	case Path(r) == "/events":
		p.stream(w, r, reply)
	case fault == CutBody:
		body, _ := io.ReadAll(reply.Body)
		w.WriteHeader(reply.StatusCode)
		_, _ = w.Write(body[:len(body)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	default:
		w.WriteHeader(reply.StatusCode)
		_, _ = io.Copy(w, reply.Body)
	}
}

// stream is an open event stream.
type stream struct {
	cut chan struct{}
	// lines are sent in addition to those of the engine. Its handler receives them.
	lines chan injected
}

type injected struct {
	lines [][]byte
	done  chan taken
}

// taken says how a reader received lines.
type taken struct {
	slowest time.Duration
	err     error
}

// CutStreams ends all open event streams.
func (p *Proxy) CutStreams() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.streams {
		close(s.cut)
		delete(p.streams, s)
	}
}

// Streams returns the number of open event streams.
func (p *Proxy) Streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.streams)
}

// Send writes lines to all open event streams, one write per line, as fast as they are
// read. It returns when all are written, with the time of the slowest stream.
func (p *Proxy) Send(ctx context.Context, lines ...[]byte) (slowest time.Duration, err error) {
	p.mu.Lock()
	open := slices.Collect(maps.Keys(p.streams))
	p.mu.Unlock()
	if len(open) == 0 {
		return 0, errors.New("no event stream is open")
	}
	for _, s := range open {
		in := injected{lines: lines, done: make(chan taken, 1)}
		select {
		case s.lines <- in:
		case <-s.cut:
			continue
		case <-ctx.Done():
			return slowest, ctx.Err()
		}
		select {
		case result := <-in.done:
			if slowest = max(slowest, result.slowest); result.err != nil {
				return slowest, result.err
			}
		case <-ctx.Done():
			return slowest, ctx.Err()
		}
	}
	return slowest, nil
}

// stream copies the engine's events line by line, and adds the lines of Send.
func (p *Proxy) stream(w http.ResponseWriter, r *http.Request, reply *http.Response) {
	s := &stream{cut: make(chan struct{}), lines: make(chan injected)}
	control := http.NewResponseController(w)
	w.WriteHeader(reply.StatusCode)
	_ = control.Flush()
	p.mu.Lock()
	p.streams[s] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.streams, s)
		p.mu.Unlock()
	}()
	fromEngine := make(chan []byte)
	ended := make(chan struct{})
	go func() { // ends with the reply's body, which is closed below
		defer close(ended)
		lines := bufio.NewScanner(reply.Body)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			select {
			case fromEngine <- bytes.Clone(lines.Bytes()):
			case <-r.Context().Done():
				return
			case <-s.cut:
				return
			}
		}
	}()
	defer func() {
		_ = reply.Body.Close()
		<-ended
		panic(http.ErrAbortHandler)
	}()
	for {
		select {
		case line := <-fromEngine:
			_ = writeLine(w, control, line)
		case in := <-s.lines:
			in.done <- writeLines(w, control, in.lines)
		case <-ended:
			return
		case <-s.cut:
			return
		case <-p.gone:
			return
		case <-r.Context().Done():
			return
		}
	}
}

func writeLines(w io.Writer, control *http.ResponseController, lines [][]byte) taken {
	var result taken
	for i, line := range lines {
		begun := time.Now()
		if err := writeLine(w, control, line); err != nil {
			result.err = fmt.Errorf("line %d of %d: %w", i+1, len(lines), err)
			return result
		}
		result.slowest = max(result.slowest, time.Since(begun))
	}
	return result
}

func writeLine(w io.Writer, control *http.ResponseController, line []byte) error {
	_, err := w.Write(append(line, '\n'))
	return errors.Join(err, control.Flush())
}

// Matches reports whether a request has the method and a path of the pattern, in
// which "*" stands for an id.
func Matches(r *http.Request, method, pattern string) bool {
	have, want := strings.Split(Path(r), "/"), strings.Split(pattern, "/")
	if r.Method != method || len(have) != len(want) {
		return false
	}
	for i := range want {
		if want[i] != "*" && want[i] != have[i] {
			return false
		}
	}
	return true
}
