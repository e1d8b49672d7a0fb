package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
)

// moment is when at a report the robot dies.
type moment int

const (
	// before it is sent.
	before moment = iota
	// after it was sent, before the answer is read.
	after
)

// death is a planned death of this incarnation.
type death struct {
	report int
	moment moment
	kind   string
}

// kinds are the deaths of the flag -deaths, in turn: three equal errors in a row end an
// agent.
var kinds = []string{"exit3", "kill", "fail"}

// planned returns the deaths of an incarnation.
func planned(o options, incarnation uint32) ([]death, error) {
	var deaths []death
	for item := range strings.SplitSeq(o.die, ",") {
		if item == "" {
			continue
		}
		var d death
		n, rest, ok := strings.Cut(item, "@")
		at, kind, ok2 := strings.Cut(rest, ":")
		if at2, plus := strings.CutSuffix(at, "+"); plus {
			at, d.moment = at2, after
		}
		number, err := strconv.ParseUint(n, 10, 32)
		if err == nil {
			d.report, err = strconv.Atoi(at)
		}
		if err != nil || !ok || !ok2 {
			return nil, fmt.Errorf("a death is written as 1@3:kill, not as %q", item)
		}
		if d.kind = kind; uint32(number) == incarnation {
			deaths = append(deaths, d)
		}
	}
	if int(incarnation) <= o.deaths {
		random := rand.New(rand.NewPCG(o.seed, uint64(incarnation)<<32))
		deaths = append(deaths, death{
			report: 1 + random.IntN(3+3*o.steps/(o.deaths+1)), moment: moment(random.IntN(2)), kind: kinds[(o.seed+uint64(incarnation))%uint64(len(kinds))],
		})
	}
	return deaths, nil
}

// dieAt dies if a death is planned for the moment.
func (r *robot) dieAt(report int, at moment) {
	for _, d := range r.deaths {
		if d.report == report && d.moment == at {
			r.write(diary.Entry{What: diary.Dies, Text: d.kind})
			r.die(d.kind)
		}
	}
}

// die does not return, but for a stop that somebody ends.
func (r *robot) die(kind string) {
	switch {
	case kind == "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case kind == "stop":
		r.lastBeat()
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		return
	case kind == "hang":
		r.silent.Store(true)
		select {}
	case kind == "busy":
		r.lastBeat()
		for { // a tenth of a processor is enough to be seen
			for begun := time.Now(); time.Since(begun) < 10*time.Millisecond; {
			}
			time.Sleep(90 * time.Millisecond)
		}
	case kind == "oom":
		useMemory()
	case kind == "error":
		fmt.Fprintln(os.Stderr, "robot: the step cannot be done")
		os.Exit(1)
	case kind == "fail":
		words := []string{"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"}
		fmt.Fprintln(os.Stderr, "robot: failure", words[int(r.incarnation)%len(words)])
		os.Exit(1)
	default:
		code, err := strconv.Atoi(strings.TrimPrefix(kind, "exit"))
		if err != nil {
			fmt.Fprintf(os.Stderr, "robot: there is no death %q\n", kind)
			code = badExit
		}
		os.Exit(code)
	}
}

// lastBeat sends a beat that no other follows, and records when.
func (r *robot) lastBeat() {
	r.silent.Store(true)
	_, err := r.socket.ask(report{Op: "beat"})
	r.write(diary.Entry{What: diary.Silent, At: time.Now().UnixMilli(), Text: fmt.Sprint(err)})
}

// useMemory uses memory until the kernel ends the process.
func useMemory() {
	var all [][]byte
	for {
		block := make([]byte, 1<<20)
		for i := range block {
			block[i] = byte(i)
		}
		all = append(all, block)
		if len(all)%64 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}
