package agents

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/checkpoints"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine/agent"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
)

// maxMeta bounds a file of Meta, in bytes.
const maxMeta = 8 << 20

// meta is the file meta.json of an agent: what its newest incarnation was begun with. Only
// an adoption after a lost database reads it.
type meta struct {
	AgentID     string          `json:"agent_id"`
	Name        string          `json:"name,omitempty"`
	SandboxID   string          `json:"sandbox_id"`
	Owned       bool            `json:"owned,omitempty"`
	Incarnation uint32          `json:"incarnation"`
	Attempt     uint32          `json:"attempt"`
	Strategy    string          `json:"strategy,omitempty"`
	BegunAt     time.Time       `json:"begun_at"`
	Progress    json.RawMessage `json:"progress,omitempty"`
	Spec        json.RawMessage `json:"spec"`
}

// writeMeta replaces meta.json of an agent whose incarnation is about to start.
func (r *Runner) writeMeta(a ledger.Agent) error {
	spec, err := protojson.Marshal(a.Spec)
	if err != nil {
		return err
	}
	m := meta{
		AgentID: a.ID, Name: a.Name, SandboxID: a.SandboxID, Owned: a.Owned, Incarnation: a.Incarnation.N,
		Attempt: a.Incarnation.Attempt, Strategy: a.Strategy, BegunAt: a.Incarnation.BegunAt, Spec: spec,
	}
	if a.Incarnation.Before != nil {
		if m.Progress, err = protojson.Marshal(a.Incarnation.Before); err != nil {
			return err
		}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	file := r.paths.AgentMeta(a.ID)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", append(raw, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// RemoveMeta removes meta.json of an agent that has ended, so that no adoption begins it
// again. removed means that there was one.
func (r *Runner) RemoveMeta(agentID string) (removed bool, err error) {
	file := r.paths.AgentMeta(agentID)
	if err := os.Remove(file); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	_ = os.Remove(filepath.Dir(file)) // if nothing else is in it
	return true, nil
}

// Metas returns the ids of the agents that have a meta.json.
func (r *Runner) Metas() []string { return metas(r.paths) }

func metas(install paths.Install) []string {
	folders, _ := os.ReadDir(install.Agents()) // without the folder there are none
	var found []string
	for _, f := range folders {
		if _, err := os.Lstat(install.AgentMeta(f.Name())); err == nil && ids.Valid(f.Name()) {
			found = append(found, f.Name())
		}
	}
	return found
}

// AdoptAll reads what is known about the agents of a lost database. A file that cannot be
// read is logged and left out.
func AdoptAll(install paths.Install, log *slog.Logger) []ledger.AdoptedAgent {
	var found []ledger.AdoptedAgent
	for _, id := range metas(install) {
		a, err := readMeta(install.AgentMeta(id))
		if err == nil && a.ID != id {
			err = fmt.Errorf("it is about agent %.64q", a.ID)
		}
		if err != nil {
			log.Warn("the file of an agent cannot be read, so the agent is not adopted", "agent_id", id, "error", err)
			continue
		}
		a.Checkpoints = orphanedCheckpoints(install, id)
		found = append(found, a)
	}
	return found
}

// orphanedCheckpoints returns the newest checkpoints of an agent whose record is lost.
func orphanedCheckpoints(install paths.Install, agentID string) []*agboxv1.AgentCheckpoint {
	var all []*agboxv1.AgentCheckpoint
	for _, f := range checkpoints.New(install).Found(agentID) {
		c := saved(f.Mark).GetCheckpoint()
		c.Format = f.Format
		all = append(all, c)
	}
	return all[max(0, len(all)-agent.KeptCheckpoints):]
}

func readMeta(file string) (ledger.AdoptedAgent, error) {
	var a ledger.AdoptedAgent
	f, err := os.Open(file)
	if err != nil {
		return a, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxMeta))
	if err != nil {
		return a, err
	}
	var m meta
	if err := json.Unmarshal(raw, &m); err != nil {
		return a, err
	}
	a = ledger.AdoptedAgent{
		ID: m.AgentID, Name: m.Name, SandboxID: m.SandboxID, Owned: m.Owned,
		Incarnation: m.Incarnation, Attempt: m.Attempt, Strategy: m.Strategy, Spec: new(agboxv1.AgentSpec),
	}
	if len(m.Progress) > 0 {
		a.Progress = new(agboxv1.AgentProgress)
		err = protojson.Unmarshal(m.Progress, a.Progress)
	}
	if m.Incarnation == 0 || !ids.Valid(m.SandboxID) {
		err = errors.Join(err, errors.New("it names no incarnation or no sandbox"))
	}
	return a, errors.Join(err, protojson.Unmarshal(m.Spec, a.Spec))
}
