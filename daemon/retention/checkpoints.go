package retention

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// ErrCheckpointDamaged means that the file of a checkpoint is missing, or is not the one that was
// acknowledged. Trying again does not help.
var ErrCheckpointDamaged = fmt.Errorf("the checkpoint is damaged: %w", errdefs.ErrDataLoss)

// Checkpoints keeps the newest checkpoints of each agent in a folder of the daemon, so that they
// outlast the sandboxes in which they were written. Its methods may be called from several
// goroutines, but not at the same time for one agent.
type Checkpoints struct {
	paths paths.Install
}

// NewCheckpoints returns the checkpoints of an install.
func NewCheckpoints(install paths.Install) *Checkpoints { return &Checkpoints{install} }

func (s *Checkpoints) name(agentID string, seq uint64) string {
	return filepath.Join(s.paths.AgentCheckpoints(agentID), strconv.FormatUint(seq, 10)+".json")
}

// Take copies a checkpoint of an exec from the logs of its sandbox. The container can write
// there, so the copy is compared with the mark. When Take returns, the copy is on disk. It
// may be repeated.
func (s *Checkpoints) Take(agentID, sandboxID, execID string, m *journal.Mark) error {
	dir, err := logs.OpenDir(s.paths.SandboxLogs(sandboxID))
	if err != nil {
		return closedCheckpoint(err)
	}
	defer func() { _ = dir.Close() }()
	from, err := dir.OpenCheckpoint(execID, m.Seq)
	if err != nil {
		return closedCheckpoint(err)
	}
	defer func() { _ = from.Close() }()
	return s.put(agentID, from, m)
}

// closedCheckpoint is damagedCheckpoint for the logs of a sandbox. Root in there can take the rights over
// them from a daemon that is not root.
func closedCheckpoint(err error) error {
	if errdefs.IsPermissionDenied(err) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %w", ErrCheckpointDamaged, err)
	}
	return damagedCheckpoint(err)
}

// damagedCheckpoint adds ErrCheckpointDamaged to an error that no retry mends.
func damagedCheckpoint(err error) error {
	if errors.Is(err, logs.ErrNotExist) || errors.Is(err, logs.ErrTampered) || errors.Is(err, checkpoint.ErrMismatch) || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", ErrCheckpointDamaged, err)
	}
	return err
}

// put writes a checkpoint that it reads, if that is the one of the mark.
func (s *Checkpoints) put(agentID string, from io.Reader, m *journal.Mark) error {
	dir := s.paths.AgentCheckpoints(agentID)
	if err := makeFolder(s.paths.Data, dir); err != nil {
		return err
	}
	return filesystem.ReplaceFile(s.name(agentID, m.Seq), func(f *os.File) error { return damagedCheckpoint(checkpoint.Copy(f, from, m)) })
}

// makeFolder makes a folder and those above it, up to top, with durable names.
func makeFolder(top, dir string) error {
	if dir == top {
		return nil
	}
	if err := makeFolder(top, filepath.Dir(dir)); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return filesystem.SyncDir(filepath.Dir(dir))
}

// CheckpointMark is the mark of a recorded checkpoint.
func CheckpointMark(c *agboxv1.AgentCheckpoint) *journal.Mark {
	return &journal.Mark{Seq: c.GetSeq(), ID: c.GetCheckpointId(), CRC32: c.GetCrc32(), Bytes: c.GetBytes()}
}

// Open opens a checkpoint that it has compared with its record. The error is ErrDamaged if
// it is not the recorded one.
func (s *Checkpoints) Open(agentID string, c *agboxv1.AgentCheckpoint) (*os.File, error) {
	f, err := os.Open(s.name(agentID, c.GetSeq()))
	if err != nil {
		return nil, damagedCheckpoint(err)
	}
	err = checkpoint.Copy(io.Discard, f, CheckpointMark(c))
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(damagedCheckpoint(err), f.Close())
	}
	return f, nil
}

// Current opens a checkpoint like Open. One in an older format is upgraded.
func (s *Checkpoints) Current(agentID string, c *agboxv1.AgentCheckpoint) (io.ReadCloser, error) {
	f, err := s.Open(agentID, c)
	if err != nil || c.GetFormat() == checkpoint.Version {
		return f, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(f) // its size is the recorded one
	if err == nil {
		raw, err = checkpoint.Upgrade(raw)
	}
	if err == nil {
		_, err = checkpoint.Parse(raw)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCheckpointDamaged, err)
	}
	return io.NopCloser(bytes.NewReader(raw)), nil
}

// Keep removes the checkpoints of an agent but the given ones.
func (s *Checkpoints) Keep(agentID string, kept []*agboxv1.AgentCheckpoint) error {
	dir := s.paths.AgentCheckpoints(agentID)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	names := make(map[string]bool, len(kept))
	for _, c := range kept {
		names[filepath.Base(s.name(agentID, c.GetSeq()))] = true
	}
	errs := []error{err}
	for _, e := range entries {
		if name := e.Name(); !names[name] {
			errs = append(errs, os.Remove(filepath.Join(dir, name)))
		}
	}
	return errors.Join(errs...)
}

// Adopt gives an agent a copy of a checkpoint of another one, as its checkpoint 1.
func (s *Checkpoints) Adopt(agentID, from string, c *agboxv1.AgentCheckpoint) error {
	f, err := s.Open(from, c)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	m := CheckpointMark(c)
	m.Seq = 1
	return s.put(agentID, f, m)
}

// Remove removes everything that is kept of an agent.
func (s *Checkpoints) Remove(agentID string) error { return os.RemoveAll(s.paths.Agent(agentID)) }

// FoundCheckpoint is a checkpoint whose record is lost.
type FoundCheckpoint struct {
	*journal.Mark
	// Format is the version of its file.
	Format uint32
}

// Found returns the checkpoints of an agent whose record is lost, oldest first. They were
// compared with their records when they were copied. A file that is none is left out.
func (s *Checkpoints) Found(agentID string) []FoundCheckpoint {
	entries, _ := os.ReadDir(s.paths.AgentCheckpoints(agentID)) // without the folder there are none
	var all []FoundCheckpoint
	for _, e := range entries {
		name, isFile := strings.CutSuffix(e.Name(), ".json")
		seq, err := strconv.ParseUint(name, 10, 64)
		if !isFile || err != nil || seq == 0 || !e.Type().IsRegular() {
			continue
		}
		if found, err := foundCheckpoint(s.name(agentID, seq)); err == nil {
			found.Seq = seq // a copy from another agent has another number inside
			all = append(all, found)
		}
	}
	slices.SortFunc(all, func(a, b FoundCheckpoint) int { return cmp.Compare(a.Seq, b.Seq) })
	return all
}

func foundCheckpoint(name string) (FoundCheckpoint, error) {
	f, err := os.Open(name)
	if err != nil {
		return FoundCheckpoint{}, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, checkpoint.MaxFile+1))
	if err != nil {
		return FoundCheckpoint{}, err
	}
	written := struct{ Version uint32 }{1} // which had no such field
	if err := json.Unmarshal(raw, &written); err != nil {
		return FoundCheckpoint{}, err
	}
	parsed, err := checkpoint.Parse(raw)
	return FoundCheckpoint{parsed.Mark(crc32.ChecksumIEEE(raw), int64(len(raw))), written.Version}, err
}

// Newest opens the newest checkpoint that is whole, like Current. kept are those that are
// recorded, oldest first. damaged has the numbers of newer ones that are not whole. If none
// is whole, the error is ErrDamaged. If none is recorded, there is neither a file nor an
// error. An error that is not ErrDamaged may pass.
func (s *Checkpoints) Newest(agentID string, kept []*agboxv1.AgentCheckpoint) (c *agboxv1.AgentCheckpoint, file io.ReadCloser, damaged []uint64, err error) {
	for i := len(kept) - 1; i >= 0; i-- {
		file, err = s.Current(agentID, kept[i])
		if err == nil {
			return kept[i], file, damaged, nil
		}
		if !errors.Is(err, ErrCheckpointDamaged) {
			return nil, nil, damaged, err
		}
		damaged = append(damaged, kept[i].GetSeq())
	}
	return nil, nil, damaged, err
}
