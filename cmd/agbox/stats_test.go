package main

import (
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestTheBusiestProcessesComeFirst(t *testing.T) {
	process := func(pid uint32, started, cpu time.Duration) *agboxv1.Process {
		return &agboxv1.Process{Pid: pid, StartedAt: timestamppb.New(theTime.Add(started)), CpuTime: durationpb.New(cpu), Command: "x"}
	}
	var o topOptions
	percents := func(at time.Duration, processes ...*agboxv1.Process) string {
		text := ""
		for _, row := range o.rows(&agboxv1.ListProcessesResponse{At: timestamppb.New(theTime.Add(at)), Processes: processes}) {
			text += fmt.Sprintf("%s: %s %s, ", row[0].Text, row[4].Text, row[6].Text)
		}
		return text
	}
	// The first list says what a process has used since its start.
	if got, want := percents(100*time.Second, process(1, 0, 10*time.Second), process(2, 50*time.Second, 25*time.Second)), "2: 50.0 % 0:25.00, 1: 10.0 % 0:10.00, "; got != want {
		t.Errorf("the first list is %q, want %q", got, want)
	}
	// The next ones say what it has used in between; pid 2 is another process now.
	if got, want := percents(102*time.Second, process(1, time.Millisecond, 13*time.Second), process(2, 101*time.Second, 100*time.Millisecond)), "1: 150.0 % 0:13.00, 2: 10.0 % 0:00.10, "; got != want {
		t.Errorf("the second list is %q, want %q", got, want)
	}
	if got := shortTime(75*time.Minute + 3*time.Second + 40*time.Millisecond); got != "75:03.04" {
		t.Errorf("75 minutes are %q", got)
	}
	if got := firstLines("a\nb\nc\n", 2); got != "a\nb\n" {
		t.Errorf("the first lines are %q", got)
	}
}
