package supervisor

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// What a tool has started is killed too, and nothing of another call.
func TestACallIsKilledByItsMark(t *testing.T) {
	start := func(mark string) (*exec.Cmd, int) {
		cmd := exec.Command("sh", "-c", "setsid sleep 1000 & echo $!; exec sleep 1000")
		cmd.Env = []string{"PATH=/usr/bin:/bin", probes.CallVariable + "=" + mark}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		child, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		return cmd, child
	}
	s := &Supervisor{look: make(gate, 1)}
	one, child := start("e/1")
	ten, other := start("e/10")
	s.killCall("e/1")
	_ = one.Wait()
	if one.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the tool ended with %v", one.ProcessState)
	}
	if p, ok := readProcess(child); ok {
		t.Errorf("what it started runs: %+v", p)
	}
	for _, pid := range []int{ten.Process.Pid, other} {
		if _, ok := readProcess(pid); !ok {
			t.Error("another call was killed")
		}
	}
	s.killCall("e/10")
	_ = ten.Wait()
}
