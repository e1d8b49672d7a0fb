package agentcli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// freePort returns a port that nothing listens on.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// serveFor runs serve-health with a supervisor that always answers the same, until the test
// ends. It returns the address and a channel for the exit code.
func serveFor(t *testing.T, answer string) (address string, code <-chan int) {
	t.Helper()
	env, requests := listen(t, answer+"\n")
	port := freePort(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		done <- Run(ctx, []string{"serve-health", "--port", fmt.Sprint(port)}, env, strings.NewReader(""), io.Discard, io.Discard)
	}()
	go func() {
		for range requests {
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	address = fmt.Sprintf("127.0.0.1:%d", port)
	for {
		if c, err := net.Dial("tcp4", address); err == nil {
			_ = c.Close()
			return address, done
		}
	}
}

func get(t *testing.T, method, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// The rows are the matrix of the requirements.
func TestHealthIsServedFromWhatWasReported(t *testing.T) {
	for _, row := range []struct {
		name, answer   string
		healthz, ready int
	}{
		{"hydrating", `{"alive":true,"ready":false}`, 200, 503},
		{"executing", `{"alive":true,"ready":true}`, 200, 200},
		{"draining", `{"alive":true,"ready":false}`, 200, 503},
		{"blocked, or the pool is exhausted", `{"alive":false,"ready":false}`, 503, 503},
	} {
		address, _ := serveFor(t, `{"ok":true,"result":`+row.answer+`}`)
		healthz, _ := get(t, "GET", "http://"+address+"/healthz")
		ready, _ := get(t, "GET", "http://"+address+"/readyz?verbose")
		if healthz != row.healthz || ready != row.ready {
			t.Errorf("%s: %d and %d; want %d and %d", row.name, healthz, ready, row.healthz, row.ready)
		}
		if code, body := get(t, "GET", "http://"+address+"/metrics"); code != 404 || body != "not found" {
			t.Errorf("another path: %d, %s", code, body)
		}
		if code, _ := get(t, "POST", "http://"+address+"/healthz"); code != 405 {
			t.Errorf("another method: %d", code)
		}
	}
}

func TestServingHealthEndsWithItsIncarnation(t *testing.T) {
	address, done := serveFor(t, `{"ok":false,"error":{"code":"WRONG_TOKEN","message":"No."}}`)
	if code, body := get(t, "GET", "http://"+address+"/healthz"); code != 503 || body != "No." {
		t.Errorf("after its incarnation: %d, %s", code, body)
	}
	if code := <-done; code != exitOK {
		t.Errorf("it exits with %d", code)
	}
}

func TestRequestsForHealthAreBounded(t *testing.T) {
	address, _ := serveFor(t, `{"ok":true,"result":{"alive":true,"ready":true}}`)
	for request, want := range map[string]string{
		"GET /healthz HTTP/1.0\r\n\r\n": "HTTP/1.1 200 OK", "GET /healthz HTTP/2\r\n\r\n": "HTTP/1.1 400 Bad Request", "x\n\n": "HTTP/1.1 400 Bad Request",
		"GET /healthz HTTP/1.1\r\n" + strings.Repeat("X: y\r\n", maxHead/6): "",
	} {
		c, err := net.Dial("tcp4", address)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = io.WriteString(c, request)
		answer, _ := io.ReadAll(c)
		first, _, _ := strings.Cut(string(answer), "\r\n")
		if first != want {
			t.Errorf("%.30q: %q; want %q", request, first, want)
		}
		_ = c.Close()
	}
}

func TestServeHealthRefusesWrongArguments(t *testing.T) {
	for _, args := range [][]string{{"--port", "0"}, {"--port", "65536"}, {"--port", "x"}, {"8086"}, {"--help-me"}} {
		code, _, errs := run(t, []string{"AGBOX_AGENT_SOCKET=/x", "AGBOX_TOKEN=y"}, append([]string{"serve-health"}, args...)...)
		if code != exitFailed || !strings.Contains(errs, "--port PORT") {
			t.Errorf("%q: %d, %s", args, code, errs)
		}
	}
}

func FuzzRequestLine(f *testing.F) {
	f.Add("GET /healthz HTTP/1.1\r\n")
	f.Add("GET /readyz?x=1 HTTP/1.0\n")
	f.Fuzz(func(t *testing.T, line string) {
		if method, path, ok := requestLine(line); ok && (method == "" || strings.ContainsAny(path, "? ")) {
			t.Errorf("%q: %q, %q", line, method, path)
		}
	})
}

// answering answers the requests with the lines, one after the other, and then with the last
// one again. An empty line is no answer.
func answering(t *testing.T, lines ...string) (socket string, asked *atomic.Int64) {
	t.Helper()
	socket, asked = filepath.Join(t.TempDir(), "s"), new(atomic.Int64)
	l, err := net.Listen("unix", socket)
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
			n := int(asked.Add(1)) - 1
			_, _ = c.Write([]byte(lines[min(n, len(lines)-1)]))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return socket, asked
}

func TestBeatsGoOnUntilTheIncarnationEnds(t *testing.T) {
	const yes, over = `{"ok":true,"result":{}}` + "\n", `{"ok":false,"error":{"code":"WRONG_TOKEN","message":"over"}}` + "\n"
	for _, row := range []struct {
		name  string
		lines []string
		code  int
		asked int64
	}{
		{"the incarnation ends", []string{yes, yes, over}, exitOK, 3},
		{"nobody answers for a while", []string{yes, "", "", yes, over}, exitOK, 5},
		{"a token that was never good", []string{over}, exitUnknown, 1},
		{"a beat that is refused", []string{yes, `{"ok":false,"error":{"code":"NOT_STORED","message":"full"}}` + "\n"}, exitRefused, 2},
	} {
		socket, asked := answering(t, row.lines...)
		b := beater{session: session{socket: socket, token: "tok", stderr: io.Discard}, every: time.Millisecond, parent: func() int { return 7 }}
		if code := b.run(t.Context()); code != row.code || asked.Load() != row.asked {
			t.Errorf("%s: exit code %d after %d beats; want %d after %d", row.name, code, asked.Load(), row.code, row.asked)
		}
	}
}

func TestBeatsEndWithTheProgram(t *testing.T) {
	socket, asked := answering(t, `{"ok":true,"result":{}}`+"\n")
	b := beater{session: session{socket: socket, token: "tok", stderr: io.Discard}, every: time.Millisecond, parent: func() int {
		if asked.Load() >= 3 {
			return 1
		}
		return 7
	}}
	if code := b.run(t.Context()); code != exitOK || asked.Load() != 3 {
		t.Errorf("exit code %d after %d beats", code, asked.Load())
	}
}

func TestTimesBetweenBeats(t *testing.T) {
	env := []string{"AGBOX_AGENT_SOCKET=/nowhere", "AGBOX_TOKEN=tok"}
	for _, args := range [][]string{{"beat", "--every"}, {"beat", "--every", "soon"}, {"beat", "--every", "0s"}, {"beat", "--every", "2h"}, {"beat", "15s"}} {
		if code, _, errs := run(t, env, args...); code != exitFailed || errs == "" {
			t.Errorf("%v: exit code %d, %q", args, code, errs)
		}
	}
}
