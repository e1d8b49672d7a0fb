package reconcile

import (
	"context"
	"io"
	"path"
	"strconv"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// copyToService copies what the spec names into the container of a service that never ran.
// After a crash it is repeated, and replaces what it copied before.
func (l *Loop) copyToService(ctx context.Context, sb ledger.Sandbox, spec *agboxv1.ServiceSpec, id string) error {
	for i, c := range spec.GetCopies() {
		one := hostfiles.Copy{
			Field:  "services." + spec.GetName() + ".copies[" + strconv.Itoa(i) + "]",
			Source: c.GetSource(), Target: c.GetTarget(), Excludes: c.GetExcludePatterns(), Owner: c.GetOwner(),
			Force: sb.Spec.GetSecurity().GetAllowDangerousMounts(),
		}
		if err := l.copyOne(ctx, sb, one, id); err != nil {
			return one.Failed(err)
		}
	}
	return nil
}

func (l *Loop) copyOne(ctx context.Context, sb ledger.Sandbox, one hostfiles.Copy, id string) error {
	tree, err := l.hostOf(sb).Open(one)
	if err != nil {
		return err
	}
	defer tree.Close()
	owner, err := one.Numbers()
	if err != nil {
		return err
	}
	read, write := io.Pipe()
	packed := make(chan error, 1)
	go func() { // this function waits for packed
		err := tree.Pack(ctx, write, strings.TrimPrefix(path.Clean(one.Target), "/"), owner, nil, nil)
		_ = write.CloseWithError(err) // never fails
		packed <- err
	}()
	err = l.verb(ctx, pullTimeout, func(ctx context.Context) error { return l.engine.CopyTo(ctx, id, read) })
	_ = read.CloseWithError(io.ErrClosedPipe) // the packer may still write
	if failed := <-packed; fault.Of(failed) != nil {
		return failed // what is wrong on the host
	}
	return err
}
