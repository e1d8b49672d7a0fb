package checkpoints

import (
	"cmp"
	"encoding/json"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/journal"
)

// Found is a checkpoint whose record is lost.
type Found struct {
	*journal.Mark
	// Format is the version of its file.
	Format uint32
}

// Found returns the checkpoints of an agent whose record is lost, oldest first. They were
// compared with their records when they were copied. A file that is none is left out.
func (s *Store) Found(agentID string) []Found {
	entries, _ := os.ReadDir(s.paths.AgentCheckpoints(agentID)) // without the folder there are none
	var all []Found
	for _, e := range entries {
		name, isFile := strings.CutSuffix(e.Name(), ".json")
		seq, err := strconv.ParseUint(name, 10, 64)
		if !isFile || err != nil || seq == 0 || !e.Type().IsRegular() {
			continue
		}
		if found, err := found(s.name(agentID, seq)); err == nil {
			found.Seq = seq // a copy from another agent has another number inside
			all = append(all, found)
		}
	}
	slices.SortFunc(all, func(a, b Found) int { return cmp.Compare(a.Seq, b.Seq) })
	return all
}

func found(name string) (Found, error) {
	f, err := os.Open(name)
	if err != nil {
		return Found{}, err
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, checkpoint.MaxFile+1))
	if err != nil {
		return Found{}, err
	}
	written := struct{ Version uint32 }{1} // which had no such field
	if err := json.Unmarshal(raw, &written); err != nil {
		return Found{}, err
	}
	parsed, err := checkpoint.Parse(raw)
	return Found{parsed.Mark(crc32.ChecksumIEEE(raw), int64(len(raw))), written.Version}, err
}
