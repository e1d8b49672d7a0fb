package agentcli

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/agbox/agbox/agents/journal"
)

// supervisor answers requests by what they ask for: the op, or for calls what about them.
type supervisor struct {
	answers map[string]string
	// hold makes the answer to wait come only when it is closed.
	hold chan struct{}

	mu    sync.Mutex
	asked []string
}

// start listens until the test ends, and returns the environment of a program.
func (s *supervisor) start(t *testing.T) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { s.answer(c) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); close(s.hold); work.Wait() })
	return []string{"PATH=/usr/bin:/bin", "AGBOX_AGENT_SOCKET=" + path, "AGBOX_TOKEN=tok"}
}

func (s *supervisor) answer(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return // a request that was cancelled before it was sent
	}
	var req struct {
		Op, Call, Error, Tool, Name, Invocation string
		ResultBase64                            *string `json:"result_base64"`
		ResultBytes                             uint64  `json:"result_bytes"`
		Bytes                                   int64
	}
	_ = json.Unmarshal(line, &req)
	body, _ := io.ReadAll(io.LimitReader(in, req.Bytes))
	about := req.Op
	if req.Call != "" {
		about = req.Call
	}
	if about == "wait" {
		if s.answers["wait"] == "" {
			<-s.hold
		}
	} else {
		s.mu.Lock()
		s.asked = append(s.asked, strings.TrimSpace(strings.Join([]string{about, req.Tool + req.Name, req.Invocation, req.Error}, " ")))
		if req.Bytes > 0 {
			s.asked = append(s.asked, fmt.Sprintf("body of %d bytes of %d, %x", len(body), req.ResultBytes, crc32.ChecksumIEEE(body)))
		} else if req.ResultBase64 != nil {
			s.asked = append(s.asked, fmt.Sprintf("%s   0 %d %s", about, req.ResultBytes, *req.ResultBase64))
		}
		s.mu.Unlock()
	}
	answer := s.answers[about]
	if answer == "" {
		answer = `{"ok":true,"result":{"invocation":"i","mark":"m/1"}}`
	}
	_, _ = c.Write([]byte(answer + "\n"))
}

func TestTool(t *testing.T) {
	for _, row := range []struct {
		name    string
		answers map[string]string
		args    []string
		code    int
		out     string
		asked   []string
	}{
		{"works", nil, []string{"x", "--", "sh", "-c", "echo $AGBOX_CALL"}, 0, "m/1\n", []string{"gate x", "begin x", "end  i"}},
		{"with an id", nil, []string{"--id", "7", "--final", "x", "--", "true"}, 0, "", []string{"gate x", "begin x 7", "end  i"}},
		{"fails", nil, []string{"x", "--", "sh", "-c", "exit 3"}, 3, "", []string{"gate x", "begin x", "end  i It exited with 3."}},
		{"ends by a signal", nil, []string{"x", "--", "sh", "-c", "kill -9 $$"}, 137, "", []string{"gate x", "begin x", "end  i It exited with 137."}},
		{"is not there", nil, []string{"x", "--", "/nowhere"}, 127, "", []string{"gate x", "begin x", "end  i It could not be started: fork/exec /nowhere: no such file or directory"}},
		{"takes too long", map[string]string{"wait": `{"ok":true,"result":{"abort":"TOOL_TIMEOUT"}}`}, []string{"x", "--", "sleep", "1000"}, 124, "", []string{"gate x", "begin x"}},
		{"is ended by a drain", map[string]string{"wait": `{"ok":true,"result":{"abort":"SHUTDOWN"}}`}, []string{"x", "--", "sleep", "1000"}, 75, "", []string{"gate x", "begin x"}},
		{"in the last step of a drain", map[string]string{"gate": `{"ok":true,"drain":true,"deadline_ms":5}`}, []string{"x", "--", "true"}, 0, "", []string{"gate x", "begin x", "end  i"}},
		{"after the last step of a drain", map[string]string{"gate": `{"ok":true,"drain":true,"deadline_ms":0}`}, []string{"x", "--", "true"}, 75, "", []string{"gate x"}},
		{"is fenced", map[string]string{"gate": `{"ok":false,"error":{"code":"FENCED","message":"No."}}`}, []string{"x", "--", "true"}, 2, "", []string{"gate x"}},
		{"is refused", map[string]string{"begin": `{"ok":false,"error":{"code":"NOT_ALLOWED","message":"No."}}`}, []string{"x", "--", "true"}, 4, "", []string{"gate x", "begin x"}},
	} {
		s := &supervisor{answers: row.answers, hold: make(chan struct{})}
		code, out, errs := run(t, s.start(t), append([]string{"tool"}, row.args...)...)
		s.mu.Lock()
		if code != row.code || out != row.out || !slices.Equal(s.asked, row.asked) {
			t.Errorf("%s: %d, %q, asked %q, errors %q; want %d, %q, %q", row.name, code, out, s.asked, errs, row.code, row.out, row.asked)
		}
		s.mu.Unlock()
	}
	for _, args := range [][]string{{}, {"x"}, {"x", "true"}, {"x", "--"}, {"--", "x", "y"}, {"--id"}, {"--what", "x", "--", "true"}} {
		if code, _, errs := run(t, nil, append([]string{"tool"}, args...)...); code != exitFailed || !strings.Contains(errs, "tool ") {
			t.Errorf("%q: %d, %q", args, code, errs)
		}
	}
}

// TestALongOutputIsSentAsAWhole, unless it is beyond what is kept: then its beginning is.
func TestALongOutputIsSentAsAWhole(t *testing.T) {
	for size, want := range map[int]string{
		0:                         "end   0 0 ",
		journal.MaxResult + 1:     fmt.Sprintf("body of %d bytes of %d, %x", journal.MaxResult+1, journal.MaxResult+1, crc32.ChecksumIEEE(make([]byte, journal.MaxResult+1))),
		journal.MaxResultFile:     fmt.Sprintf("body of %d bytes of %d, %x", journal.MaxResultFile, journal.MaxResultFile, crc32.ChecksumIEEE(make([]byte, journal.MaxResultFile))),
		journal.MaxResult:         fmt.Sprintf("end   0 %d %s", journal.MaxResult, base64.StdEncoding.EncodeToString(make([]byte, journal.MaxResult))),
		journal.MaxResultFile + 1: fmt.Sprintf("end   0 %d %s", journal.MaxResultFile+1, base64.StdEncoding.EncodeToString(make([]byte, journal.MaxResult))),
	} {
		s := &supervisor{hold: make(chan struct{})}
		code, out, errs := run(t, s.start(t), "tool", "--once", "--id", "1", "x", "--", "head", "-c", fmt.Sprint(size), "/dev/zero")
		if code != exitOK || len(out) != size || errs != "" {
			t.Errorf("%d bytes: it prints %d: %d, %s", size, len(out), code, errs)
		}
		if !slices.Contains(s.asked, want) {
			t.Errorf("of %d bytes the supervisor was not sent %.60q", size, want)
		}
	}
}
