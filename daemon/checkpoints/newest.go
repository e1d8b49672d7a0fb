package checkpoints

import (
	"errors"
	"io"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Newest opens the newest checkpoint that is whole, like Current. kept are those that are
// recorded, oldest first. damaged has the numbers of newer ones that are not whole. If none
// is whole, the error is ErrDamaged. If none is recorded, there is neither a file nor an
// error. An error that is not ErrDamaged may pass.
func (s *Store) Newest(agentID string, kept []*agboxv1.AgentCheckpoint) (c *agboxv1.AgentCheckpoint, file io.ReadCloser, damaged []uint64, err error) {
	for i := len(kept) - 1; i >= 0; i-- {
		file, err = s.Current(agentID, kept[i])
		if err == nil {
			return kept[i], file, damaged, nil
		}
		if !errors.Is(err, ErrDamaged) {
			return nil, nil, damaged, err
		}
		damaged = append(damaged, kept[i].GetSeq())
	}
	return nil, nil, damaged, err
}
