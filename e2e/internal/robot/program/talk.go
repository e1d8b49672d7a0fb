package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"
)

// Talks between a parent and its child. The times are those of the clock of the machine,
// which both have.
const (
	// listening is the answer of a child that waits for a message in recv, idle the state of
	// one that is paused until a message comes.
	listening = "listening"
	idle      = "IDLE"
)

// talk spawns a child and sends it so many messages while it waits in recv, and so many while
// it is IDLE.
func talk(rounds int) error {
	s := newSocket()
	got, err := must(s.ask(report{Op: "spawn", Key: "child", Class: class, Command: []string{os.Args[0], "-listen", strconv.Itoa(rounds)}}))
	if err != nil {
		return err
	}
	child, last := got.Result.AgentID, uint64(0)
	for i := range 2 * rounds {
		for waits := false; !waits; {
			got, err := must(s.ask(report{Op: "recv", After: last}))
			if err != nil {
				return err
			}
			for _, m := range got.Result.Messages {
				last = m.Seq
				waits = waits || i < rounds && m.Text == listening || i >= rounds && m.Body.State == idle
			}
		}
		if _, err := must(s.ask(report{Op: "send", To: child, Text: strconv.FormatInt(time.Now().UnixNano(), 10)})); err != nil {
			return err
		}
	}
	return s.complete()
}

// listen is the child of talk. It prints how long the messages took until it had them.
func listen(rounds int) error {
	s, last := newSocket(), uint64(0)
	times := make(map[string][]time.Duration)
	for i := range 2 * rounds {
		how, waits := "idle", report{Op: "pause", Reason: "idle"}
		if i < rounds {
			how, waits = "recv", report{Op: "send", To: "parent", Text: listening}
		}
		// What is not acknowledged would wake it at once.
		if _, err := must(s.ask(report{Op: "recv", After: last, NoWait: true})); err != nil {
			return err
		}
		woken, err := must(s.ask(waits))
		if err != nil {
			return err
		}
		got, err := must(s.ask(report{Op: "recv", After: last}))
		if err != nil {
			return err
		}
		for _, m := range got.Result.Messages {
			last = m.Seq
			if m.Kind != "TEXT" { // what changed while it was IDLE
				continue
			}
			sent, err := strconv.ParseInt(m.Text, 10, 64)
			if err != nil {
				return err
			}
			times[how] = append(times[how], time.Since(time.Unix(0, sent)))
		}
		if number := woken.Result.Observation; number > 0 {
			if _, err := must(s.ask(report{Op: "resumed", How: "ok", Observation: uint64(number)})); err != nil {
				return err
			}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(times); err != nil {
		return err
	}
	return s.complete()
}

// flood sends so many messages on a stream, as fast as it can.
func flood(messages int, stream string) error {
	if stream == "" {
		return errors.New("-flood needs -stream")
	}
	s := newSocket()
	for i := range messages {
		if _, err := must(s.ask(report{Op: "send", Stream: stream, Text: fmt.Sprint(i)})); err != nil {
			return err
		}
	}
	return s.complete()
}

// complete reports that the work is done.
func (s *socket) complete() error {
	_, err := must(s.ask(report{Op: "done", Outcome: "complete"}))
	return err
}

// must makes a refusal an error.
func must(got answer, err error) (answer, error) {
	if err == nil && !got.OK {
		err = fmt.Errorf("%s: %s", got.Error.Code, got.Error.Message)
	}
	return got, err
}
