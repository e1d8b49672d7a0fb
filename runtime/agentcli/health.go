package agentcli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/agbox/agbox/agents/gate"
)

const (
	// healthPort is where probes look by default.
	healthPort = 8086
	// maxHead bounds the head of a request for health, and headTime how long it may take.
	maxHead  = 8 << 10
	headTime = 5 * time.Second
	// maxChecks bounds the connections that are served at once.
	maxChecks = 16
	// bindTime is how long the port may still belong to the incarnation before, whose
	// command ends when it notices that its incarnation has.
	bindTime, bindPause = 15 * time.Second, 50 * time.Millisecond
)

// serveHealth answers the health checks of a program from what it has reported, until its
// incarnation ends. It returns the exit code.
func serveHealth(ctx context.Context, s session, args []string) int {
	flags := flag.NewFlagSet("serve-health", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	port := flags.Uint("port", healthPort, "")
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 || *port < 1 || *port > 65535 {
		_, _ = fmt.Fprintln(s.stderr, "agbox-agent: serve-health takes only --port PORT, from 1 to 65535")
		return exitFailed
	}
	l, err := bind(ctx, uint16(*port))
	if err != nil {
		_, _ = fmt.Fprintf(s.stderr, "agbox-agent: Port %d cannot be used (%v): choose another one with --port, and with the probes.\n", *port, err)
		return exitFailed
	}
	h := &healthServer{session: s, listener: l, room: make(chan struct{}, maxChecks)}
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	return h.serve(ctx)
}

// answerHealth is the command serve-health.
func answerHealth(args []string) (func(ctx context.Context, s session) int, error) {
	return func(ctx context.Context, s session) int { return serveHealth(ctx, s, args) }, nil
}

// bind listens on a port of 127.0.0.1.
func bind(ctx context.Context, port uint16) (net.Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	for {
		l, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		select {
		case <-time.After(bindPause):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// healthServer answers /healthz and /readyz.
type healthServer struct {
	session
	listener net.Listener
	// room bounds the connections, work counts them.
	room chan struct{}
	work sync.WaitGroup
}

// serve answers until the listener is closed, which happens when the incarnation is over.
func (h *healthServer) serve(ctx context.Context) int {
	defer h.work.Wait()
	for {
		c, err := h.listener.Accept()
		if err != nil {
			return exitOK
		}
		h.room <- struct{}{}
		h.work.Go(func() {
			defer func() { <-h.room }()
			h.answer(ctx, c)
			_ = c.Close()
		})
	}
}

// answer answers one request.
func (h *healthServer) answer(ctx context.Context, c net.Conn) {
	if c.SetDeadline(time.Now().Add(headTime)) != nil {
		return
	}
	in := bufio.NewReader(io.LimitReader(c, maxHead))
	line, err := in.ReadString('\n')
	for rest := line; err == nil && strings.TrimRight(rest, "\r\n") != ""; {
		rest, err = in.ReadString('\n')
	}
	if err != nil {
		return
	}
	code, body := 400, "bad request"
	if method, path, ok := requestLine(line); ok {
		code, body = h.result(ctx, method, path)
	}
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		code, reasons[code], len(body), body)
}

var reasons = map[int]string{200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}

// requestLine splits "GET /path HTTP/1.1". The query is left out.
func requestLine(line string) (method, path string, ok bool) {
	words := strings.Fields(line)
	if len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/1.") {
		return "", "", false
	}
	path, _, _ = strings.Cut(words[1], "?")
	return words[0], path, true
}

// result is the answer for a path.
func (h *healthServer) result(ctx context.Context, method, path string) (code int, body string) {
	switch {
	case path != "/healthz" && path != "/readyz":
		return 404, "not found"
	case method != "GET":
		return 405, "only GET is possible"
	}
	got, raw, err := h.ask(ctx, map[string]any{"op": "health"}, nil)
	if err == nil && !got.OK {
		_ = h.listener.Close() // its incarnation is over
		return 503, got.Error.Message
	}
	var health struct {
		Result gate.Health `json:"result"`
	}
	if err = errors.Join(err, json.Unmarshal(raw, &health)); err != nil {
		return 503, "the supervisor cannot be asked"
	}
	switch {
	case path == "/healthz" && !health.Result.Alive:
		return 503, "unhealthy"
	case path == "/readyz" && !health.Result.Ready:
		return 503, "not ready"
	}
	return 200, "ok"
}

// maxEvery bounds the time between two beats.
const maxEvery = time.Hour

// parseEvery reads the arguments of "beat --every".
func parseEvery(args []string) (time.Duration, error) {
	if len(args) != 2 || args[0] != "--every" {
		return 0, errors.New("beat takes only --every DURATION, as in \"beat --every 15s\"")
	}
	every, err := time.ParseDuration(args[1])
	if err != nil || every < time.Millisecond || every > maxEvery {
		return 0, fmt.Errorf("%q is no time between two beats: give one like 15s, at most %v", args[1], maxEvery)
	}
	return every, nil
}

// beater sends beats for a program that has no timer. That only shows that the program has
// not ended.
type beater struct {
	session
	every time.Duration
	// parent returns the id of the parent process.
	parent func() int
}

// run sends beats until the parent ends, the incarnation ends or ctx does, and returns the
// exit code. It goes on if the supervisor cannot be asked: its socket stays as long as the
// container.
func (b beater) run(ctx context.Context) int {
	ticker := time.NewTicker(b.every)
	defer ticker.Stop()
	parent, sent := b.parent(), false
	for b.parent() == parent {
		got, _, err := b.ask(ctx, map[string]any{"op": "beat"}, nil)
		switch {
		case err != nil:
		case got.OK:
			sent = true
		case sent && got.Error.Code == "WRONG_TOKEN": // the incarnation has ended
			return exitOK
		default:
			_, _ = fmt.Fprintln(b.stderr, "agbox-agent:", got.Error.Message)
			return exitCode(got.Error.Code)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return exitOK
		}
	}
	return exitOK
}

// beatEvery is the command "beat --every".
func beatEvery(args []string) (func(ctx context.Context, s session) int, error) {
	if len(args) == 0 {
		return nil, nil
	}
	every, err := parseEvery(args)
	return func(ctx context.Context, s session) int {
		return beater{s, every, os.Getppid}.run(ctx)
	}, err
}
