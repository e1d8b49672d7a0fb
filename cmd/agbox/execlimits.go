package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/notation"
)

// execLimits are the flags that bound a command.
type execLimits struct {
	timeout, idle, grace limitFlag
	maxLog               string
}

// limitFlag is an optional duration, such as 10m.
type limitFlag struct {
	given bool
	value time.Duration
}

func (f *limitFlag) String() string {
	if !f.given {
		return ""
	}
	return notation.FormatDuration(f.value)
}

// Type names the value in the help.
func (f *limitFlag) Type() string { return "TIME" }

// Set takes the value from the command line.
func (f *limitFlag) Set(text string) (err error) {
	f.value, err = notation.Duration(text)
	f.given = err == nil
	return err
}

func (f *limitFlag) proto() *durationpb.Duration {
	if !f.given {
		return nil
	}
	return durationpb.New(f.value)
}

func (l *execLimits) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&l.timeout, "timeout", "end the command after this `TIME`, for example 10m; agbox then exits with 124")
	f.Var(&l.idle, "idle-timeout", "end it after this `TIME` without output; agbox then exits with 124")
	f.Var(&l.grace, "grace", "`TIME` between SIGTERM and SIGKILL after a timeout (default 5s)")
	f.StringVar(&l.maxLog, "max-log", "", "keep at most `SIZE` of each output, for example 100m; more is dropped and counted")
}

// apply puts the limits into a request.
func (l *execLimits) apply(in *agboxv1.CreateExecRequest) error {
	for _, flag := range []struct {
		name string
		*limitFlag
	}{{"timeout", &l.timeout}, {"idle-timeout", &l.idle}} {
		if flag.given && flag.value < time.Millisecond {
			return usagef("--%s %s is too short: give at least 1ms, or omit it for no limit.", flag.name, flag.value)
		}
	}
	if l.grace.given && !l.timeout.given && !l.idle.given {
		return usagef("--grace needs --timeout or --idle-timeout. To end a command yourself, use `agbox kill --grace`.")
	}
	in.Timeout, in.IdleTimeout, in.Grace = l.timeout.proto(), l.idle.proto(), l.grace.proto()
	if l.maxLog == "" {
		return nil
	}
	size, err := notation.Bytes(l.maxLog)
	if err != nil {
		return usagef("--max-log: %v.", err)
	}
	if size == 0 {
		return usagef("--max-log 0 would keep no output: give at least 1, or omit it to use the daemon's limit.")
	}
	in.MaxLogBytes = uint64(size)
	return nil
}

// endMarks are short remarks that ps shows after the state of an exec.
func endMarks(e *agboxv1.ExecStatus) string {
	var marks []string
	add := func(is bool, mark string) {
		if is {
			marks = append(marks, mark)
		}
	}
	add(e.GetErrorCode() == agboxv1.ErrorReason_EXEC_TIMEOUT.String(), "timeout")
	add(e.GetErrorCode() == agboxv1.ErrorReason_EXEC_IDLE_TIMEOUT.String(), "idle timeout")
	add(e.GetOomKilled(), "out of memory")
	add(droppedWords(e) != "", "log cut")
	if len(marks) == 0 {
		return ""
	}
	return " (" + strings.Join(marks, ", ") + ")"
}

// cpuTime is the CPU time of an exec that has ended: user and system.
func cpuTime(e *agboxv1.ExecStatus) string {
	if e.GetUserTime() == nil {
		return "-"
	}
	sum := e.GetUserTime().AsDuration() + e.GetSystemTime().AsDuration()
	switch {
	case sum >= time.Minute:
		return sum.Round(time.Second).String()
	case sum >= time.Second:
		return sum.Round(10 * time.Millisecond).String()
	}
	return sum.Round(time.Millisecond).String()
}

// peakMemory is the peak memory of an exec, in a suitable unit.
func peakMemory(e *agboxv1.ExecStatus) string {
	if e.GetPeakMemoryBytes() == 0 {
		return "-"
	}
	return memoryCount(e.GetPeakMemoryBytes())
}
