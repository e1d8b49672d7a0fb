package store

import (
	"errors"
	"math"

	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// PutPool stores a pool, with the secrets of its spec in a record of their own. Make the key of its id
// before.
func (t *Tx) PutPool(name string, p *storev1.Pool, spec *agboxv1.CreateSpec) error {
	shown, values := secrets.HideSpec(spec)
	if err := t.seal(bucketSandboxSecrets, []byte(p.GetId()), p.GetId(), aboutSandbox(p.GetId()), values); err != nil {
		return err
	}
	p.Spec = shown
	return t.putMessage(bucketPools, []byte(name), p)
}

// UpdatePool stores a pool anew whose spec is the same.
func (t *Tx) UpdatePool(name string, p *storev1.Pool) error {
	return t.putMessage(bucketPools, []byte(name), p)
}

// RemovePool removes a pool with its secrets. Erase its key too.
func (t *Tx) RemovePool(name string, p *storev1.Pool) error {
	return errors.Join(t.remove(bucketPools, []byte(name)), t.remove(bucketSandboxSecrets, []byte(p.GetId())))
}

// Pool returns a pool, without secrets. The error is errdefs.ErrNotFound or a RecordError.
func (t *Tx) Pool(name string) (*storev1.Pool, error) {
	p := new(storev1.Pool)
	return p, t.message(bucketPools, []byte(name), p)
}

// PoolNames returns the names of all pools.
func (t *Tx) PoolNames() []string { return t.keys(bucketPools, "", math.MaxInt) }
