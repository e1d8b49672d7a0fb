package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"github.com/agbox/agbox/e2e/internal/robot/diary"
)

// claim is a resource that the robot asks for or holds.
type claim struct {
	Resource string `json:"resource"`
	Mode     string `json:"mode,omitempty"`
	Fence    uint64 `json:"fence,omitempty"`
}

// observation is the number of one. The answer to a request for resources has the whole.
type observation uint64

// UnmarshalJSON takes a number, or an object that has it.
func (o *observation) UnmarshalJSON(raw []byte) error {
	if len(raw) == 0 || raw[0] != '{' {
		return json.Unmarshal(raw, (*uint64)(o))
	}
	var whole struct {
		Observation uint64 `json:"observation"`
	}
	err := json.Unmarshal(raw, &whole)
	*o = observation(whole.Observation)
	return err
}

const (
	// drainingCode is the code of a request that ends because of a drain, overCode that of one
	// about an agent that has ended.
	drainingCode = "DRAINING"
	overCode     = "AGENT_WRONG_STATE"
)

// claim asks for a resource in every second step, and for one more while it holds it. It returns
// false if the robot is to leave before it has both.
func (r *robot) claim(step int) (bool, error) {
	if r.resources == 0 || step%2 == 1 {
		return true, nil
	}
	random := rand.New(rand.NewPCG(r.seed, uint64(step)<<16))
	var manifest []claim
	for range 2 {
		mode := "exclusive"
		if random.IntN(2) == 0 {
			mode = "shared"
		}
		manifest = append(manifest, claim{Resource: fmt.Sprint("r", random.IntN(r.resources)), Mode: mode})
		if got, err := r.acquire(manifest); err != nil || !got {
			return got, err
		}
	}
	return true, nil
}

// acquire asks for resources until it has them. A request that waits is repeated, so that a
// drain is noticed.
func (r *robot) acquire(manifest []claim) (bool, error) {
	r.does("acquire", fmt.Sprint(manifest))
	ask := report{Op: "acquire", Manifest: manifest, Wait: true, TimeoutMs: uint64(pollTime.Milliseconds())}
	for {
		got, err := r.socket.ask(ask)
		switch {
		case err != nil:
			return false, err
		case r.mustLeave(got), !got.OK && got.Error.Code == drainingCode:
			return false, nil
		case !got.OK && got.Error.Code != noAnswer:
			return false, fmt.Errorf("the resources %v are refused: %s: %s", manifest, got.Error.Code, got.Error.Message)
		case got.Result.Verdict == "OBSERVE":
			ask.Observation = uint64(got.Result.Observation)
		case got.Result.Verdict == "GRANTED":
			for _, c := range got.Result.Leases {
				r.write(diary.Entry{What: diary.Leased, Text: c.Resource, Fence: c.Fence})
			}
			return true, nil
		}
	}
}

// release releases all resources.
func (r *robot) release() error {
	if r.resources == 0 {
		return nil
	}
	r.does("release", "")
	_, err := must(r.socket.ask(report{Op: "release"}))
	return err
}

// mustLeave reports whether the robot is to end, also by what an answer says.
func (r *robot) mustLeave(got answer) bool {
	if got.Drain {
		r.drained.Store(true)
	}
	return r.terminated.Load() || r.drained.Load() && !r.ignoreTerm
}

// hold begins to hold children, or ends that. Those that have ended need nobody.
func (r *robot) hold(op string, children ...string) error {
	for _, id := range children {
		r.does(op, id)
		got, err := r.socket.ask(report{Op: op, Stream: "agent:" + id})
		if err == nil && !got.OK && got.Error.Code != overCode {
			err = fmt.Errorf("%s of agent %s: %s: %s", op, id, got.Error.Code, got.Error.Message)
		}
		if err != nil {
			return err
		}
		r.mustLeave(got)
	}
	return nil
}

// juggle lets go of a child in each third step, and holds all of them again in the next one.
func (r *robot) juggle(step int) error {
	if !r.holds || len(r.children) == 0 {
		return nil
	}
	if step%3 == 1 {
		return r.hold("close", r.children[step%len(r.children)])
	}
	return r.hold("open", r.children...)
}
