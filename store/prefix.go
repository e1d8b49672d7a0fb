package store

import (
	"bytes"
)

// ExecIDsWithPrefix lists up to limit reserved exec ids that begin with prefix,
// in the order of bytes: an id that is the prefix itself comes first.
func (t *Tx) ExecIDsWithPrefix(prefix string, limit int) []string {
	b := t.bolt.Bucket(bucketExecIDs)
	if b == nil {
		return nil
	}
	var found []string
	c := b.Cursor()
	for k, _ := c.Seek([]byte(prefix)); k != nil && bytes.HasPrefix(k, []byte(prefix)) && len(found) < limit; k, _ = c.Next() {
		found = append(found, string(k))
	}
	return found
}
