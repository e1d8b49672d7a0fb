package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
)

// robot is one incarnation.
type robot struct {
	options
	agentID     string
	incarnation uint32
	diary       *os.File
	effects     *os.File
	socket      *socket
	deaths      []death
	// terminated is set by SIGTERM, and drained by an answer that says so.
	terminated, drained atomic.Bool
	// silent ends the beats.
	silent atomic.Bool
	// children are the ids of its children.
	children []string
	// reports counts the reports of this incarnation.
	reports int
	// used and done are what this incarnation has used and completed.
	used usage
	done uint64
}

// usage is what an incarnation has used.
type usage struct {
	input, output, micro uint64
}

func newRobot(o options) (*robot, error) {
	n, err := strconv.ParseUint(os.Getenv("AGBOX_INCARNATION"), 10, 32)
	if err != nil {
		return nil, fmt.Errorf("this is not the program of an agent: %w", err)
	}
	r := &robot{options: o, agentID: os.Getenv("AGBOX_AGENT_ID"), incarnation: uint32(n), socket: newSocket()}
	if r.deaths, err = planned(o, r.incarnation); err != nil {
		return nil, err
	}
	if r.diary, err = diary.Append(diary.Name(o.folder, r.agentID)); err != nil {
		return nil, err
	}
	r.effects, err = diary.Append(diary.Effects(o.folder, r.agentID))
	return r, err
}

// work does the steps that are left and returns the exit code.
func (r *robot) work() (int, error) {
	// Each incarnation holds this lock for its life, so two at the same time are seen.
	if err := syscall.Flock(int(r.diary.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		r.write(diary.Entry{What: diary.Overlap})
	}
	from, err := r.resume()
	if err != nil {
		return 0, err
	}
	r.write(diary.Entry{What: diary.Begin, From: from, Env: environment()})
	for _, state := range []string{"HYDRATING", "READY", "EXECUTING"} {
		if err := r.report(report{Op: "state", State: state}); err != nil {
			return 0, err
		}
	}
	if err := r.spawn(); err != nil {
		return 0, err
	}
	for step := from + 1; step <= r.steps; step++ {
		r.wait(step)
		if r.drained.Load() && !r.ignoreTerm || r.terminated.Load() {
			return r.leave()
		}
		if may, err := r.claim(step); err != nil || !may {
			return r.leaveOr(err)
		}
		if err := r.step(step); err != nil {
			return 0, err
		}
		if err := errors.Join(r.release(), r.juggle(step)); err != nil {
			return 0, err
		}
		r.rest()
	}
	if err := r.release(); err != nil { // of an incarnation that died before it did
		return 0, err
	}
	if together, err := r.join(); err != nil || !together {
		return r.leaveOr(err)
	}
	if err := r.report(report{Op: "state", State: "DRAINING"}); err != nil {
		return 0, err
	}
	err = r.report(report{Op: "done", Outcome: "complete", Message: fmt.Sprintf("%d steps are done", r.steps)})
	r.write(diary.Entry{What: diary.End})
	return 0, err
}

// leave ends the incarnation before the work is done, and returns its exit code.
func (r *robot) leave() (int, error) {
	if !r.drained.Load() {
		r.write(diary.Entry{What: diary.End, Text: "SIGTERM"})
		return 128 + int(syscall.SIGTERM), nil
	}
	err := r.report(report{Op: "state", State: "DRAINING"})
	r.write(diary.Entry{What: diary.End, Text: "drain"})
	return 0, err
}

// leaveOr leaves, unless there is an error.
func (r *robot) leaveOr(err error) (int, error) {
	if err != nil {
		return 0, err
	}
	return r.leave()
}

// environment is what the incarnation was told about itself.
func environment() map[string]string {
	env := make(map[string]string)
	for _, entry := range os.Environ() {
		if name, value, _ := strings.Cut(entry, "="); strings.HasPrefix(name, "AGBOX_") && name != "AGBOX_TOKEN" {
			env[name] = value
		}
	}
	return env
}

// rest is the pause after a step. It ends early if the robot is to leave, and once all robots are
// to hurry.
func (r *robot) rest() {
	if r.pace > 0 {
		r.does("rest", r.pace.String())
	}
	for until := time.Now().Add(r.pace); ; {
		left := time.Until(until)
		if _, err := os.Stat(filepath.Join(r.folder, "hurry")); left <= 0 || err == nil || r.mustLeave(answer{}) {
			return
		}
		time.Sleep(min(left, 250*time.Millisecond))
	}
}

// wait returns once a step may begin.
func (r *robot) wait(step int) {
	for step == r.waitAt && !r.terminated.Load() && !(r.drained.Load() && !r.ignoreTerm) {
		for _, gate := range []string{"go", r.agentID + ".go"} {
			if _, err := os.Stat(filepath.Join(r.folder, gate)); err == nil {
				return
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// step does a step: a call of a model, an effect, and the reports about both.
func (r *robot) step(step int) error {
	random := rand.New(rand.NewPCG(r.seed, uint64(step)))
	r.used.input += 100 + random.Uint64N(900)
	r.used.output += 10 + random.Uint64N(90)
	r.used.micro += 1000
	if err := r.report(report{Op: "usage", InputTokens: r.used.input, OutputTokens: r.used.output, CostUSD: fmt.Sprintf("%d.%06d", r.used.micro/1e6, r.used.micro%1e6)}); err != nil {
		return err
	}
	if err := r.tell(step); err != nil {
		return err
	}
	if err := r.effect(step); err != nil {
		return err
	}
	r.done++
	if err := r.report(report{Op: "step", Steps: r.done, step: step}); err != nil {
		return err
	}
	if r.checkpoint > 0 {
		state := fmt.Appendf(nil, `{"step":%d,"padding":%q}`, step, strings.Repeat("x", r.checkpoint))
		if err := r.report(report{Op: "checkpoint", Step: step, Bytes: len(state), state: state, step: step}); err != nil {
			return err
		}
	}
	return r.report(report{Op: "say", Text: fmt.Sprintf("step %d of %d", step, r.steps)})
}

// effect has the effect of a step, unless the outside world has it already.
func (r *robot) effect(step int) error {
	had, err := diary.Lines(r.effects.Name())
	if err != nil {
		return err
	}
	id := diary.Invocation(r.agentID, step)
	if slices.Contains(had, id) {
		r.write(diary.Entry{What: diary.Skip, Step: step})
		return nil
	}
	if _, err = r.effects.WriteString(id + "\n"); err == nil {
		_, err = fmt.Println(id) // for those who are attached
	}
	return err
}

// resume returns the step after which this incarnation goes on: that of the checkpoint that
// it was given, or that of the last effect.
func (r *robot) resume() (int, error) {
	path := os.Getenv("AGBOX_CHECKPOINT")
	if r.checkpoint == 0 || path == "" {
		had, err := diary.Lines(r.effects.Name())
		return len(had), err
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	var file struct {
		State struct {
			Step int `json:"step"`
		} `json:"state"`
	}
	err = json.Unmarshal(raw, &file)
	return file.State.Step, err
}

// beats reports that the robot is alive. It has a connection of its own, so a slow report
// delays no beat.
func (r *robot) beats() {
	s := newSocket()
	for range time.Tick(r.beat) {
		if r.silent.Load() {
			return
		}
		if got, err := s.ask(report{Op: "beat"}); err == nil && got.Drain {
			r.drained.Store(true)
		}
	}
}

// does notes what the robot is about to do, for those who look for why it does not get on.
func (r *robot) does(op, what string) {
	r.write(diary.Entry{What: diary.Does, Op: op, Text: what, At: time.Now().UnixMilli()})
}

// write adds an entry to the diary.
func (r *robot) write(e diary.Entry) {
	e.Incarnation = r.incarnation
	line, err := json.Marshal(e)
	if err == nil {
		_, err = r.diary.Write(append(line, '\n')) // one write, so a whole line or none
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "robot: the diary cannot be written:", err)
		os.Exit(badExit)
	}
}
