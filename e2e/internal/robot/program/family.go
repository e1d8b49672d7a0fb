package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
)

const (
	// class is that of all children.
	class = "worker"
	// pollTime is how long a request for messages may wait. A robot that is to leave looks
	// only in between.
	pollTime = 5 * time.Second
	// noAnswer is the code of a request that has waited for that long.
	noAnswer = "NO_ANSWER_IN_TIME"
)

// message is a message in the inbox.
type message struct {
	Seq  uint64 `json:"seq"`
	Kind string `json:"kind"`
	From string `json:"from"`
	Key  string `json:"key"`
	// Stream is empty if it was sent to the robot alone.
	Stream string `json:"stream"`
	Text   string `json:"text"`
	Body   struct {
		State string `json:"state"`
	} `json:"body"`
}

// messages are those that were received. The answer to a pause has their number instead.
type messages []message

// UnmarshalJSON takes a list of messages, and leaves out a number.
func (m *messages) UnmarshalJSON(raw []byte) error {
	if len(raw) == 0 || raw[0] != '[' {
		return nil
	}
	return json.Unmarshal(raw, (*[]message)(m))
}

// over has the states of an agent that has ended.
var over = []string{"COMPLETED", "ABORTED", "FAILED", "DEAD_LETTER"}

// spawn spawns the children. The keys are the same in each incarnation, so a further one gets
// the same children.
func (r *robot) spawn() error {
	if r.depth == 0 {
		return nil
	}
	// From before the first child on, so it gets all that its descendants send.
	if r.stream != "" {
		if err := r.report(report{Op: "open", Stream: r.stream}); err != nil {
			return err
		}
	}
	for i := range r.fanout {
		command := append(slices.Clone(os.Args), "-depth", strconv.Itoa(r.depth-1), "-seed", strconv.FormatUint(r.seed*uint64(r.fanout+1)+uint64(i)+1, 10))
		lifetime := "detached"
		if r.holds && i%3 != 2 {
			lifetime = "held"
		}
		got, err := r.ask(report{Op: "spawn", Key: fmt.Sprint("child-", i), Class: class, Command: command, Lifetime: lifetime})
		if err != nil {
			return err
		}
		r.children = append(r.children, got.Result.AgentID)
	}
	return nil
}

// tell sends a message about a step to the parent, and on the stream. Its key is the same in
// each incarnation.
func (r *robot) tell(step int) error {
	if r.fanout == 0 {
		return nil
	}
	message := report{Op: "send", To: "parent", Key: fmt.Sprint("step-", step), Text: diary.Invocation(r.agentID, step), step: step}
	if err := r.report(message); err != nil || r.stream == "" {
		return err
	}
	message.To, message.Stream = "", r.stream
	return r.report(message)
}

// join receives messages until all children, also those that it has adopted, have ended. It
// returns false if the robot is to leave before that.
func (r *robot) join() (bool, error) {
	if r.fanout == 0 {
		return true, nil
	}
	letters, err := diary.Letters(r.folder, r.agentID)
	if err != nil {
		return false, err
	}
	inbox, err := diary.Append(diary.Inbox(r.folder, r.agentID))
	if err != nil {
		return false, err
	}
	defer inbox.Close()
	last, waiting, held := uint64(0), make(map[string]bool), make(map[string]bool)
	for _, id := range r.children {
		waiting[id] = true
	}
	note := func(l diary.Letter) {
		last = max(last, l.Seq)
		switch {
		case l.Kind == "ADOPTED":
			waiting[l.From] = !slices.Contains(over, l.State)
		case slices.Contains(over, l.State): // CHILD, DEAD_LETTER or BUDGET
			waiting[l.From] = false
		}
	}
	for _, l := range letters {
		note(l)
	}
	for slices.Contains(values(waiting), true) {
		r.does("recv", fmt.Sprintf("after %d, waiting for %v", last, waiting))
		if r.terminated.Load() || r.drained.Load() && !r.ignoreTerm {
			return false, nil
		}
		// Whoever nobody holds never ends.
		for id, is := range waiting {
			if is && r.holds && !held[id] {
				if err := r.hold("open", id); err != nil {
					return false, err
				}
				held[id] = true
			}
		}
		received, err := r.receive(last)
		if err != nil {
			return false, err
		}
		for _, m := range received {
			l := diary.Letter{Seq: m.Seq, Kind: m.Kind, From: m.From, Key: m.Key, Stream: m.Stream, State: m.Body.State}
			line, err := json.Marshal(l)
			if err == nil {
				_, err = inbox.Write(append(line, '\n')) // one write, so a whole line or none
			}
			if err != nil {
				return false, err
			}
			note(l)
		}
	}
	return true, nil
}

func values(m map[string]bool) (list []bool) {
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

// receive acknowledges the messages up to a number and returns those after it, none if none
// came.
func (r *robot) receive(after uint64) ([]message, error) {
	got, err := r.socket.ask(report{Op: "recv", After: after, TimeoutMs: uint64(pollTime.Milliseconds())})
	if err != nil {
		return nil, err
	}
	if got.Drain {
		r.drained.Store(true)
	}
	if !got.OK && got.Error.Code != noAnswer {
		return nil, fmt.Errorf("the messages cannot be received: %s: %s", got.Error.Code, got.Error.Message)
	}
	return got.Result.Messages, nil
}
