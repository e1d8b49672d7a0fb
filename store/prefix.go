package store

import (
	"bytes"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"
)

// KeptExec is an exec that is still stored, with its sandbox.
type KeptExec struct{ SandboxID, ExecID string }

// ExecsWithPrefix lists up to limit stored execs whose ids begin with prefix, in
// byte order, so an id equal to prefix comes first. It searches every sandbox.
func (t *Tx) ExecsWithPrefix(prefix string, limit int) []KeptExec {
	var found []KeptExec
	_ = t.forEachExecBucket(func(sandboxID string, b *bolt.Bucket) error { // the function returns no error
		c := b.Cursor()
		taken := 0
		for k, _ := c.Seek([]byte(prefix)); k != nil && bytes.HasPrefix(k, []byte(prefix)) && taken < limit; k, _ = c.Next() {
			found = append(found, KeptExec{sandboxID, string(k)})
			taken++
		}
		return nil
	})
	slices.SortFunc(found, func(a, b KeptExec) int { return strings.Compare(a.ExecID, b.ExecID) })
	return found[:min(len(found), limit)]
}
