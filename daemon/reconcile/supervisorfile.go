package reconcile

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"slices"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
)

// startPrimary starts the container of a primary. If that fails because somebody has
// removed the binary of its supervisor, it makes the file again and repeats the start.
func (l *Loop) startPrimary(ctx context.Context, id string) error {
	start := func(ctx context.Context) error { return l.engine.StartContainer(ctx, id) }
	failed := l.verb(ctx, verbTimeout, start)
	if failed == nil || ctx.Err() != nil {
		return failed
	}
	var made runtime.Description
	err := l.verb(ctx, lookTimeout, func(ctx context.Context) (err error) {
		made, err = l.engine.DescribeContainer(ctx, id)
		return err
	})
	at := slices.IndexFunc(made.Mounts, func(m runtime.Mount) bool { return m.Target == paths.InContainerInit })
	if err != nil || at < 0 {
		return failed
	}
	restored, err := l.restoreSupervisor(made.Mounts[at].Source)
	switch {
	case err != nil:
		return err
	case !restored:
		return failed
	}
	return l.verb(ctx, verbTimeout, start)
}

// restoreSupervisor makes a supervisor's binary again if somebody has removed it, and
// reports whether it has. The engine makes and starts no container if the source of a
// mount is missing.
func (l *Loop) restoreSupervisor(file string) (restored bool, err error) {
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	made, err := l.installSupervisor()
	switch {
	case err != nil:
		return false, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
			"The supervisor %s was removed and cannot be made again (%v): repair that, and try again.", file, err).Because(err)
	case made == file:
		l.log.Warn("the supervisor's binary was removed and is made again", "file", file)
		return true, nil
	case file == l.supervisor:
		return false, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
			"The supervisor %s was removed, and another version is installed now: run \"agbox daemon upgrade\", and try again.", file)
	}
	return false, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
		"The supervisor %s of the sandbox was removed, and this agboxd has another version: put the file back from a backup, or remove the sandbox and create it again.", file)
}
