package main

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func limitsOf(t *testing.T, args ...string) (*agboxv1.CreateExecRequest, error) {
	t.Helper()
	var l execLimits
	cmd := new(cobra.Command)
	l.add(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		return nil, err
	}
	in := new(agboxv1.CreateExecRequest)
	return in, l.apply(in)
}

func TestLimitsAreReadAsPeopleWriteThem(t *testing.T) {
	in, err := limitsOf(t, "--timeout", "1h30m", "--idle-timeout", "500ms", "--grace", "0s", "--max-log", "100m")
	if err != nil || in.GetTimeout().AsDuration() != 90*time.Minute || in.GetIdleTimeout().AsDuration() != 500*time.Millisecond ||
		in.GetGrace() == nil || in.GetGrace().AsDuration() != 0 || in.GetMaxLogBytes() != 100<<20 {
		t.Errorf("the request is %v, error %v", in, err)
	}
	if in, err := limitsOf(t); err != nil || in.GetTimeout() != nil || in.GetIdleTimeout() != nil || in.GetGrace() != nil || in.GetMaxLogBytes() != 0 {
		t.Errorf("without flags the request is %v, error %v", in, err)
	}
	for _, args := range [][]string{
		{"--timeout", "0s"}, {"--timeout", "10"}, {"--timeout", "-1s"}, {"--idle-timeout", "1us"}, {"--grace", "1s"},
		{"--max-log", "0"}, {"--max-log", "much"}, {"--max-log", "-1m"},
	} {
		if _, err := limitsOf(t, args...); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
}

func TestATimeoutHasItsOwnExitCode(t *testing.T) {
	for reason, want := range map[string]int{"EXEC_TIMEOUT": 124, "EXEC_IDLE_TIMEOUT": 124, "CANCELLED_BY_REQUEST": 143} {
		e := &agboxv1.ExecStatus{State: agboxv1.ExecState_EXEC_STATE_CANCELLED, ExitCode: 143, ErrorCode: reason}
		if got := execExitCode(e); got != want {
			t.Errorf("%s: exit code %d, want %d", reason, got, want)
		}
	}
}

func TestTheTableTellsWhatACommandUsedAndHowItEnded(t *testing.T) {
	e := &agboxv1.ExecStatus{
		UserTime: durationpb.New(1234 * time.Millisecond), SystemTime: durationpb.New(time.Millisecond), PeakMemoryBytes: 5 << 20,
		ErrorCode: "EXEC_IDLE_TIMEOUT", OomKilled: true, StdoutDroppedBytes: 7,
	}
	if got := cpuTime(e) + " " + peakMemory(e) + endMarks(e); got != "1.24s 5 MiB (idle timeout, out of memory, log cut)" {
		t.Errorf("the table says %q", got)
	}
	if got := cpuTime(&agboxv1.ExecStatus{}) + peakMemory(&agboxv1.ExecStatus{}) + endMarks(&agboxv1.ExecStatus{}); got != "--" {
		t.Errorf("of a running command it says %q", got)
	}
}

func TestKillRefusesWhatContradictsItself(t *testing.T) {
	for _, o := range []killOptions{{signal: "INT", grace: time.Second}, {grace: -time.Second}} {
		if err := o.run(t.Context(), nil, nil, nil); err == nil || !strings.Contains(err.Error(), "--grace") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if err := (&killOptions{grace: client.DefaultGrace}).run(t.Context(), new(app), nil, nil); err != nil {
		t.Error(err)
	}
}
