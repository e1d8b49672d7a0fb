// Package checkpoint has the format of the files in which agents save their work. The
// supervisor writes them, the daemon keeps them, and the next incarnation reads them.
//
// A checkpoint is a JSON object: what the supervisor knows about it (Head), and under
// "state" the object that the agent gave. Nobody but the agent reads its content. The
// CRC-32 (IEEE) of the whole file stands in the journal and in the event of the checkpoint.
package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/agbox/agbox/agents/journal"
)

// Version is that of the format that is written.
const Version = 2

// The bounds of a checkpoint, in bytes. maxHead is more than any Head has.
const (
	MaxState = 16 << 20
	maxHead  = 16 << 10
	MaxFile  = MaxState + maxHead
)

// Head is what the supervisor knows about a checkpoint. Its names are those of the file.
type Head struct {
	Version int    `json:"version"`
	Seq     uint64 `json:"seq"`
	ID      string `json:"checkpoint_id"`
	// Lineage is the id of the agent. Anchor is the exec of the incarnation that wrote it.
	Lineage     string `json:"lineage_id"`
	Anchor      string `json:"anchor_id"`
	Incarnation uint32 `json:"incarnation"`
	// WrittenAt is in UTC.
	WrittenAt time.Time `json:"written_at"`
	Kind      string    `json:"kind"`
	Turn      uint64    `json:"turn"`
	Step      uint64    `json:"step"`
	// ResumePoint is the agent's own name for the point of its work.
	ResumePoint string `json:"resume_point,omitempty"`
	// Model is the one that the agent was started with.
	Model string `json:"model,omitempty"`
	// Used is the usage of all incarnations so far.
	Used journal.Used `json:"usage"`
}

// Mark returns the row of the journal for a written checkpoint.
func (h Head) Mark(crc uint32, size int64) *journal.Mark {
	return &journal.Mark{
		Seq: h.Seq, ID: h.ID, Kind: h.Kind, CRC32: crc, Bytes: uint64(size), Turn: h.Turn, Step: h.Step, ResumePoint: h.ResumePoint,
	}
}

// Write writes a checkpoint whose state is the next size bytes of state. It holds no more
// than a piece of it in memory. It returns the CRC-32 and the size of the file. It reads all
// of the state even if it fails, so that what follows can be read, except if reading fails.
// The state of a checkpoint of kind pause must be a digest: ErrDigest.
func Write(w io.Writer, h Head, state io.Reader, size int64) (crc uint32, written int64, err error) {
	h.Version = Version
	head, err := json.Marshal(h)
	if err != nil {
		return 0, 0, errors.Join(err, drain(state, size))
	}
	out := &summed{to: w}
	check := new(scanner)
	if h.Kind == journal.PauseCheckpoint {
		check.digest = &digest{kinds: make(map[string]byte)}
	}
	body := &io.LimitedReader{R: state, N: size}
	_, err = out.Write(append(head[:len(head)-1], `,"state":`...))
	if err == nil {
		_, err = io.CopyBuffer(io.MultiWriter(check, out), struct{ io.Reader }{body}, make([]byte, 16<<10))
	}
	switch {
	case err != nil:
	case body.N > 0:
		return 0, 0, io.ErrUnexpectedEOF
	case !check.object():
		return 0, 0, fmt.Errorf("%w: it ends too early", ErrState)
	default:
		if err = check.digest.check(); err == nil {
			_, err = out.Write([]byte("}\n"))
		}
	}
	if err != nil {
		return 0, 0, errors.Join(err, drain(body, body.N))
	}
	return out.crc, out.size, nil
}

func drain(r io.Reader, size int64) error {
	_, err := io.CopyN(io.Discard, r, size)
	return err
}

// summed passes bytes on and computes their checksum and number.
type summed struct {
	to   io.Writer
	crc  uint32
	size int64
}

func (s *summed) Write(p []byte) (int, error) {
	n, err := s.to.Write(p)
	s.crc, s.size = crc32.Update(s.crc, crc32.IEEETable, p[:n]), s.size+int64(n)
	return n, err
}

// ErrMismatch means that a file is not what was written.
var ErrMismatch = errors.New("the checksum or the size is not the recorded one")

// Copy copies a checkpoint and compares it with its mark. It reads at most one byte more
// than that says.
func Copy(w io.Writer, r io.Reader, m *journal.Mark) error {
	if m.Bytes > MaxFile {
		return ErrMismatch
	}
	out := &summed{to: w}
	if _, err := io.CopyBuffer(out, struct{ io.Reader }{io.LimitReader(r, int64(m.Bytes)+1)}, make([]byte, 64<<10)); err != nil {
		return err
	}
	if out.crc != m.CRC32 || out.size != int64(m.Bytes) {
		return ErrMismatch
	}
	return nil
}

// File is a checkpoint that was read.
type File struct {
	Head
	State json.RawMessage `json:"state"`
}

// Parse reads a checkpoint. One of an older version is upgraded.
func Parse(raw []byte) (File, error) {
	var f File
	raw, err := Upgrade(raw)
	if err == nil {
		err = json.Unmarshal(raw, &f)
	}
	if err == nil && !bytes.HasPrefix(bytes.TrimSpace(f.State), []byte("{")) {
		err = ErrState
	}
	return f, err
}

// fields are the members of a checkpoint.
type fields map[string]json.RawMessage

// upgrades has, for each version, the function that makes the next one of it. A new
// version adds one at the end.
var upgrades = [Version - 1]func(fields) (fields, error){
	upgradeFromV1,
}

// Upgrade returns a checkpoint in the current version. One that is current is returned as
// it is.
func Upgrade(raw []byte) ([]byte, error) {
	var all fields
	if err := json.Unmarshal(raw, &all); err != nil || all == nil {
		return nil, fmt.Errorf("a checkpoint is a JSON object: %w", err)
	}
	version := 1 // which had no such field
	if field, has := all["version"]; has {
		if err := json.Unmarshal(field, &version); err != nil {
			return nil, fmt.Errorf("the version of a checkpoint: %w", err)
		}
	}
	switch {
	case version == Version:
		return raw, nil
	case version < 1 || version > Version:
		return nil, fmt.Errorf("version %d of checkpoints is unknown, the newest is %d: use the agbox that wrote it, or a newer one", version, Version)
	}
	for _, upgrade := range upgrades[version-1:] {
		var err error
		if all, err = upgrade(all); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all)
}

// upgradeFromV1 moves what belongs to the agent into "state". Version 1 was a drain snapshot
// whose members all stood beside each other.
func upgradeFromV1(old fields) (fields, error) {
	next, state := fields{"version": json.RawMessage("2"), "kind": json.RawMessage(`"turn"`)}, fields{}
	for name, value := range old {
		switch name {
		case "version":
		case "lineage_id", "anchor_id", "written_at", "model", "usage", "seq", "checkpoint_id", "incarnation", "kind", "turn", "step", "resume_point":
			next[name] = value
		default:
			state[name] = value
		}
	}
	raw, err := json.Marshal(state)
	next["state"] = raw
	return next, err
}
