package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
)

// report is a request on the agent socket.
type report struct {
	Op           string `json:"op"`
	ID           int    `json:"id"`
	Token        string `json:"token"`
	State        string `json:"state,omitempty"`
	InputTokens  uint64 `json:"input_tokens,omitempty"`
	OutputTokens uint64 `json:"output_tokens,omitempty"`
	CostUSD      string `json:"cost_usd,omitempty"`
	Steps        uint64 `json:"steps,omitempty"`
	Text         string `json:"text,omitempty"`
	Tool         string `json:"tool,omitempty"`
	Outcome      string `json:"outcome,omitempty"`
	Message      string `json:"message,omitempty"`
	// Of a checkpoint: the step of the whole work after which the next incarnation goes on,
	// and the size of the state, which follows the line.
	Step  int `json:"step,omitempty"`
	Bytes int `json:"bytes,omitempty"`
	state []byte
	// Of a message: its recipient or its stream, and its key.
	To     string `json:"to,omitempty"`
	Stream string `json:"stream,omitempty"`
	Key    string `json:"key,omitempty"`
	// Of a child: its class and its command.
	Class   string   `json:"class,omitempty"`
	Command []string `json:"command,omitempty"`
	// Of recv: the newest message that was received, and how long to wait for another one.
	After     uint64 `json:"after,omitempty"`
	TimeoutMs uint64 `json:"timeout_ms,omitempty"`
	NoWait    bool   `json:"no_wait,omitempty"`
	// Of a pause: why. Of its end: how the work goes on, and the observation that was taken.
	Reason      string `json:"reason,omitempty"`
	How         string `json:"how,omitempty"`
	Observation uint64 `json:"observation,omitempty"`
	// Lifetime is that of a child.
	Lifetime string `json:"lifetime,omitempty"`
	// Of resources: what is asked for, and whether the answer waits until it is granted.
	Manifest []claim `json:"manifest,omitempty"`
	Wait     bool    `json:"wait,omitempty"`
	// step is the step of the whole work, for the diary.
	step int
}

// answer is the answer to a report.
type answer struct {
	ID int  `json:"id"`
	OK bool `json:"ok"`
	// Drain: end after the step under way.
	Drain  bool `json:"drain"`
	Result struct {
		Checkpoint struct {
			Seq uint64 `json:"seq"`
		} `json:"checkpoint"`
		AgentID     string      `json:"agent_id"`
		Observation observation `json:"observation"`
		Messages    messages    `json:"messages"`
		Verdict     string      `json:"verdict"`
		Leases      []claim     `json:"leases"`
	} `json:"result"`
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

// socket is a connection to the agent socket.
type socket struct {
	conn net.Conn
	in   *bufio.Reader
	id   int
}

func newSocket() *socket { return new(socket) }

// answerTimeout bounds a report: the supervisor waits for the disk of the host, and a request
// for a daemon.
const answerTimeout = 2 * time.Minute

// notStored is the code of a report for which the disk of the logs has no room. It is repeated
// after a pause.
const (
	notStored = "NOT_STORED"
	roomPause = 250 * time.Millisecond
)

// send sends a report.
func (s *socket) send(rep report) (err error) {
	if s.conn == nil {
		if s.conn, err = net.Dial("unix", os.Getenv("AGBOX_AGENT_SOCKET")); err != nil {
			return err
		}
		s.in = bufio.NewReader(s.conn)
	}
	s.id++
	rep.ID, rep.Token = s.id, os.Getenv("AGBOX_TOKEN")
	line, err := json.Marshal(rep)
	if err != nil {
		return err
	}
	if err := s.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return err
	}
	_, err = s.conn.Write(slices.Concat(line, []byte{'\n'}, rep.state))
	return err
}

// receive reads the answer to the last report.
func (s *socket) receive() (answer, error) {
	var a answer
	line, err := s.in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err == nil && a.ID != s.id {
		err = fmt.Errorf("the answer %q is to another report than %d", line, s.id)
	}
	return a, err
}

// ask sends a report and returns the answer. It waits for room on the disk.
func (s *socket) ask(rep report) (answer, error) {
	for {
		if err := s.send(rep); err != nil {
			return answer{}, err
		}
		got, err := s.receive()
		if err != nil || got.OK || got.Error.Code != notStored {
			return got, err
		}
		time.Sleep(roomPause)
	}
}

// report sends a report, unless the robot is to die at it, and records what was sent and
// what was acknowledged. A report that is refused is an error.
func (r *robot) report(rep report) error {
	_, err := r.ask(rep)
	return err
}

// ask is report for those who need the answer.
func (r *robot) ask(rep report) (answer, error) {
	r.reports++
	e := diary.Entry{
		What: diary.Send, Op: rep.Op, Report: r.reports, Step: rep.step,
		Key: rep.Key, Stream: rep.Stream,
		InputTokens: rep.InputTokens, OutputTokens: rep.OutputTokens, Steps: rep.Steps,
	}
	r.dieAt(r.reports, before)
	r.write(e)
	if err := r.socket.send(rep); err != nil {
		return answer{}, err
	}
	r.dieAt(r.reports, after)
	got, err := r.socket.receive()
	if err == nil && got.Error.Code == notStored {
		got, err = r.socket.ask(rep)
	}
	if err != nil {
		return answer{}, err
	}
	if got.Drain {
		r.drained.Store(true)
	}
	if rep.Op == "checkpoint" {
		e.Checkpoint = got.Result.Checkpoint.Seq
	}
	if e.What = diary.Ack; !got.OK {
		e.What, e.Text = diary.Refused, got.Error.Code+": "+got.Error.Message
	}
	r.write(e)
	if !got.OK {
		return got, fmt.Errorf("the report %s was refused: %s", rep.Op, e.Text)
	}
	return got, nil
}
