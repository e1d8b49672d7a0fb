package incarnations

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

const (
	// readTries is how often the files of checkpoints are read if they cannot be, and
	// readPause the time between.
	readTries = 3
	readPause = 2 * time.Second
	// placePiece is how much of a file is sent at a time.
	placePiece = 64 << 10
)

// errHydration means that an incarnation cannot begin, because what it needs is lost. The
// message is for people.
type errHydration string

func (e errHydration) Error() string { return string(e) }

// hydrate places what the incarnation needs to go on into its sandbox, and returns the
// variables that name it. Only the checkpoint is necessary.
func (r *Runner) hydrate(ctx context.Context, a ledger.Agent) (map[string]string, error) {
	c, file, err := r.newest(ctx, a)
	if err != nil {
		return nil, err
	}
	env := make(map[string]string)
	if file != nil {
		defer func() { _ = file.Close() }()
		if env["AGBOX_CHECKPOINT"], err = r.place(ctx, a, "checkpoint.json", file); err != nil {
			return nil, err
		}
	}
	if err := r.placeObservation(ctx, a, env); err != nil {
		return nil, err
	}
	if a.Last == nil {
		return env, nil
	}
	var long []longResult
	optional := map[string]func() ([]byte, error){
		"AGBOX_PREVIOUS": func() ([]byte, error) { return previous(a.Record) },
		"AGBOX_JOURNAL":  func() ([]byte, error) { lines, l, err := r.tail(ctx, a, c); long = l; return lines, err },
		"AGBOX_HANDOFF":  func() ([]byte, error) { return r.handoff(ctx, a) },
	}
	names := map[string]string{"AGBOX_PREVIOUS": "previous.json", "AGBOX_JOURNAL": "journal.jsonl", "AGBOX_HANDOFF": "handoff.json"}
	for variable, read := range optional {
		raw, err := read()
		if err == nil && raw != nil {
			env[variable], err = r.place(ctx, a, names[variable], bytes.NewReader(raw))
		}
		if err != nil {
			delete(env, variable)
			r.log.Warn("an incarnation begins without a file about the one before", "agent_id", a.ID, "file", names[variable], "error", err)
		}
	}
	if env["AGBOX_JOURNAL"] != "" && len(long) > 0 {
		if err := r.placeLong(ctx, a, long, env); err != nil { // the journal has their beginnings
			r.log.Warn("an incarnation begins without the long results of calls", "agent_id", a.ID, "error", err)
		}
	}
	return env, nil
}

// placeLong places the long results of calls, to which the rows of the journal point.
func (r *Runner) placeLong(ctx context.Context, a ledger.Agent, long []longResult, env map[string]string) error {
	from, done := r.readLong(long)
	defer done()
	at, err := r.place(ctx, a, "results", from)
	if err == nil {
		env["AGBOX_RESULTS"] = at
	}
	return err
}

// previous is the content of the file AGBOX_PREVIOUS: how the incarnation before ended, and the
// newest crashes of the agent.
func previous(r agents.Record) ([]byte, error) {
	write := protojson.MarshalOptions{UseProtoNames: true}
	last, err := write.Marshal(agents.Told(r.Last))
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(last, &fields); err != nil {
		return nil, err
	}
	history := make([]json.RawMessage, 0, len(r.History))
	for _, end := range r.History {
		crash, err := write.Marshal(agents.Told(end))
		if err != nil {
			return nil, err
		}
		history = append(history, crash)
	}
	if fields["history"], err = json.Marshal(history); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}

// newest opens the newest checkpoint that is whole. Without one it returns nil.
func (r *Runner) newest(ctx context.Context, a ledger.Agent) (*agboxv1.AgentCheckpoint, io.ReadCloser, error) {
	for try := 1; ; try++ {
		c, file, damaged, err := r.checkpoints.Newest(a.ID, a.UsableCheckpoints())
		for _, seq := range damaged {
			r.log.Error("Checkpoint CRC mismatch for job "+a.ID, "agent_id", a.ID, "checkpoint", seq)
		}
		switch {
		case err == nil:
			return c, file, nil
		case errors.Is(err, retention.ErrCheckpointDamaged):
			return nil, nil, errHydration("Checkpoint CRC mismatch for job " + a.ID)
		case try == readTries:
			return nil, nil, errHydration(fmt.Sprintf("The checkpoints of job %s cannot be read: %v", a.ID, err))
		}
		select {
		case <-time.After(readPause):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

// place writes a file for the incarnation into its sandbox and returns its path there.
func (r *Runner) place(ctx context.Context, a ledger.Agent, name string, from io.Reader) (string, error) {
	target, mode := path.Join(paths.InContainerRun, "hydrate", a.Incarnation.ExecID, name), uint32(0o644)
	t, done, err := r.files.Transfer(ctx, a.Incarnation.SandboxID, &guestv1.TransferRequest{
		Kind: &guestv1.TransferRequest_Write{Write: &guestv1.WriteTransfer{Path: []byte(target), Mode: &mode, Parents: true}},
	})
	if err != nil {
		return "", err
	}
	defer done()
	buf := make([]byte, placePiece)
	for {
		n, err := io.ReadFull(from, buf)
		if n > 0 {
			if err := t.Push(buf[:n]); err != nil {
				return "", err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			_, err := t.Finish()
			return target, err
		}
		if err != nil {
			return "", err
		}
	}
}

// unhydrated is the end of an incarnation whose program was not started.
func unhydrated(a ledger.Agent, why errHydration) *agboxv1.AgentEvent {
	return &agboxv1.AgentEvent{
		Type: agboxv1.AgentEventType_AGENT_INCARNATION_ENDED, Incarnation: a.Incarnation.N,
		Details: &agboxv1.AgentEvent_End{End: &agboxv1.IncarnationEnd{
			Kind: agboxv1.IncarnationEndKind_INCARNATION_END_KIND_EXITED, ExecId: a.Incarnation.ExecID, ExitCode: 1,
			ErrorMessage: string(why), LifecycleAtEnd: agboxv1.AgentLifecycle_AGENT_LIFECYCLE_HYDRATING,
		}},
	}
}

// placeObservation gives an incarnation that begins after a pause the observation as a file.
func (r *Runner) placeObservation(ctx context.Context, a ledger.Agent, env map[string]string) error {
	if a.PendingObservation() == 0 {
		return nil
	}
	raw, err := json.Marshal(r.observe(ctx, a))
	if err == nil {
		env["AGBOX_OBSERVATION"], err = r.place(ctx, a, "observation.json", bytes.NewReader(raw))
	}
	return err
}
