package agentcli

import (
	"bufio"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

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
		b := beater{socket: socket, token: "tok", every: time.Millisecond, parent: func() int { return 7 }}
		if code := b.run(t.Context(), new(strings.Builder)); code != row.code || asked.Load() != row.asked {
			t.Errorf("%s: exit code %d after %d beats; want %d after %d", row.name, code, asked.Load(), row.code, row.asked)
		}
	}
}

func TestBeatsEndWithTheProgram(t *testing.T) {
	socket, asked := answering(t, `{"ok":true,"result":{}}`+"\n")
	b := beater{socket: socket, token: "tok", every: time.Millisecond, parent: func() int {
		if asked.Load() >= 3 {
			return 1
		}
		return 7
	}}
	if code := b.run(t.Context(), new(strings.Builder)); code != exitOK || asked.Load() != 3 {
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
