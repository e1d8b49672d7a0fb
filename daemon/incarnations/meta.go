package incarnations

import (
	"context"
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

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
)

// maxMeta bounds a file of Meta, in bytes.
const maxMeta = 8 << 20

// meta is the file meta.json of an agent: who it is, and what its newest incarnation was begun
// with. Only an adoption after a lost database reads it.
type meta struct {
	ledger.AdoptedAgent
	BegunAt time.Time `json:"begun_at,omitzero"`
	// Progress and Spec are those of the agent.
	Progress json.RawMessage `json:"progress,omitempty"`
	Spec     json.RawMessage `json:"spec"`
}

// Describe replaces meta.json of an agent.
func (r *Runner) Describe(ctx context.Context, a ledger.Agent) error {
	m, err := r.describes(ctx, a)
	if err != nil {
		return err
	}
	m.Parent, m.SandboxID = a.Parent, a.SandboxID
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

// describes makes the file. What the newest incarnation was begun with is known only while it
// runs; afterwards the file has it.
func (r *Runner) describes(ctx context.Context, a ledger.Agent) (m meta, err error) {
	if a.Incarnation == nil && a.Incarnations > 0 {
		return loadMeta(r.paths.AgentMeta(a.ID))
	}
	m.AdoptedAgent = ledger.AdoptedAgent{
		ID: a.ID, Name: a.Name, Depth: a.Depth, Stack: a.Stack, StackRoots: a.StackRoots, Reach: a.Reach, Tree: a.Tree, After: a.After, Owned: a.Owned,
	}
	if m.Work, err = r.ledger.AgentWork(ctx, a.ID); err != nil {
		return m, err
	}
	if m.Spec, err = protojson.Marshal(a.Spec); err != nil {
		return m, err
	}
	if inc := a.Incarnation; inc != nil {
		m.Incarnation, m.Attempt, m.Strategy, m.BegunAt = inc.N, inc.Attempt, a.Strategy, inc.BegunAt
		if inc.Before != nil {
			m.Progress, err = protojson.Marshal(inc.Before)
		}
	}
	return m, err
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
	ledger.GiveBorders(found)
	return found
}

// orphanedCheckpoints returns the newest checkpoints of an agent whose record is lost.
func orphanedCheckpoints(install paths.Install, agentID string) []*agboxv1.AgentCheckpoint {
	var all []*agboxv1.AgentCheckpoint
	for _, f := range retention.NewCheckpoints(install).Found(agentID) {
		c := saved(f.Mark).GetCheckpoint()
		c.Format = f.Format
		all = append(all, c)
	}
	return all[max(0, len(all)-agents.KeptCheckpoints):]
}

func readMeta(file string) (ledger.AdoptedAgent, error) {
	m, err := loadMeta(file)
	if err != nil {
		return ledger.AdoptedAgent{}, err
	}
	a := m.AdoptedAgent
	a.Spec = new(agboxv1.AgentSpec)
	if len(m.Progress) > 0 {
		a.Progress = new(agboxv1.AgentProgress)
		err = protojson.Unmarshal(m.Progress, a.Progress)
	}
	if !ids.Valid(m.SandboxID) {
		err = errors.Join(err, errors.New("it names no sandbox"))
	}
	return a, errors.Join(err, protojson.Unmarshal(m.Spec, a.Spec))
}

func loadMeta(file string) (m meta, err error) {
	f, err := os.Open(file)
	if err != nil {
		return m, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxMeta))
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(raw, &m)
}
