package supervisor_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// asCaller in the environment makes the test binary a program that says hello on an agent
// socket and prints the code of the answer. Its value has the socket and the token.
const asCaller = "AGBOX_TEST_AS_CALLER"

// wornMark in its environment has a process whose limit on file locks the program takes
// first, without the capability that root has in no sandbox.
const wornMark = "AGBOX_TEST_WORN_MARK"

func init() {
	socket, token, ok := strings.Cut(os.Getenv(asCaller), " ")
	if !ok {
		return
	}
	if pid, err := strconv.Atoi(os.Getenv(wornMark)); err == nil {
		takeLimit(pid)
	}
	code, err := hello(socket, token)
	if err != nil {
		code = err.Error()
	}
	fmt.Println(code)
	os.Exit(0)
}

// takeLimit takes the limit on file locks of another process, as far as the kernel lets it.
func takeLimit(pid int) {
	runtime.LockOSThread()
	header, rights := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	_ = unix.Capset(&header, &rights[0])
	var of unix.Rlimit
	_ = unix.Prlimit(pid, unix.RLIMIT_LOCKS, nil, &of)
	_ = unix.Setrlimit(unix.RLIMIT_LOCKS, &of)
	_ = unix.Setrlimit(unix.RLIMIT_LOCKS, &unix.Rlimit{Cur: of.Cur, Max: math.MaxUint64})
}

// hello returns the code of the refusal, or the agent's id.
func hello(socket, token string) (string, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "{\"op\":\"hello\",\"token\":%q}\n", token); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadBytes('\n')
	if err != nil {
		return "", err
	}
	var got struct {
		Result struct {
			AgentID string `json:"agent_id"`
		}
		Error struct{ Code string }
	}
	err = json.Unmarshal(line, &got)
	return got.Result.AgentID + got.Error.Code, err
}

// calling returns a command line that says hello with the token of the agent "victim".
func calling(t *testing.T, b *box, token string) string {
	t.Helper()
	self, err := os.Executable()
	b.must(err)
	return fmt.Sprintf("%s='%s/run/agent.sock %s' GORACE=atexit_sleep_ms=0 %s", asCaller, b.dir, token, self)
}

// TestTheAgentSocketKnowsItsCallerByItsProcess has the right token come from processes of
// the incarnation and from others.
func TestTheAgentSocketKnowsItsCallerByItsProcess(t *testing.T) {
	b := newBox(t)
	c := b.dial()
	tokens, ask, answers := b.fifo("tokens"), b.fifo("ask"), b.fifo("answers")
	victim := incarnation("victim", fmt.Sprintf(`echo $AGBOX_TOKEN > %[1]s; echo $$ > %[1]s; while read line; do sh -c "$line"; done < %[2]s`, tokens.Name(), ask.Name()))
	victim.Agent.AgentId = "victim"
	b.start(c, victim)
	token, pid := word(t, tokens), number(t, tokens)
	call := fmt.Sprintf("%s > %s", calling(t, b, token), answers.Name())
	script := filepath.Join(b.dir, "call")
	b.write("call", call)
	outside := func(id string, agent *guestv1.AgentBoot, env ...string) func(string) {
		return func(line string) {
			req := sh(id, line)
			req.Agent, req.Env = agent, env
			b.start(c, req)
		}
	}
	inside := func(line string) {
		_, err := fmt.Fprintln(ask, line)
		b.must(err)
	}
	for _, row := range []struct {
		name string
		from func(string)
		line string
		want string
	}{
		{"its own child", inside, "sh " + script, "victim"},
		{"its own daemon, of a session and with an environment of its own", inside, "(setsid env -i sh " + script + " &)", "victim"},
		{"a command beside it", outside("exec", nil), "sh " + script, "WRONG_CALLER"},
		{"a command that claims its id", outside("claims", nil), "AGBOX_EXEC_ID=victim sh " + script, "WRONG_CALLER"},
		{"a daemon that claims its id", outside("daemon", nil), "(setsid env -i AGBOX_EXEC_ID=victim sh " + script + " &)", "WRONG_CALLER"},
		{"a daemon that puts on the mark of a process before it", outside("marked", nil), fmt.Sprintf("(setsid env -i %s=%d sh %s &)", wornMark, pid, script), "WRONG_CALLER"},
		{"another agent", outside("other", &guestv1.AgentBoot{AgentId: "other", Incarnation: 1}), "sh " + script, "WRONG_CALLER"},
	} {
		row.from(row.line)
		if got := word(t, answers); got != row.want {
			t.Errorf("%s gets %s, want %s", row.name, got, row.want)
		}
	}
}
