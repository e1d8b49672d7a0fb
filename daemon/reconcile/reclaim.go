package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/runtime"
)

// Root in a sandbox can put files into the mounted folders that only root can remove. If
// the daemon's user is not root, a container removes them: the reclaimer. It is made from
// the sandbox's image, because that is at hand, but runs nothing of it. Only a folder in
// the mounted ones, or another owner, asks for a reclaimer (trees.Removable): agbox itself
// makes no folders there.
//
// The primary is stopped before it and removed after it, so the image stays. A killed
// daemon leaves nothing to remember: the next one looks at the folders again, finds the
// reclaimer by its name, and runs it once more.

const (
	// reclaimerMemory limits the memory of a reclaimer in bytes. It needs less than 20 MiB.
	reclaimerMemory = 128 << 20
	// reclaimerPIDs limits its processes and threads.
	reclaimerPIDs = 64
)

// reclaim makes the folders of a sandbox removable by the daemon's user. The logs stay.
func (l *Loop) reclaim(ctx context.Context, sb ledger.Sandbox, inv runtime.Inventory) error {
	folders, err := l.unremovable(sb.ID)
	if err != nil || len(folders) == 0 {
		return err
	}
	info, err := l.engineInfo(ctx)
	if err != nil {
		return err
	}
	imageID, err := l.reclaimImage(ctx, sb, inv)
	if err == nil {
		err = l.runReclaimer(ctx, l.reclaimerSpec(sb, imageID, folders, info))
	}
	if err == nil || retryable(err) || ctx.Err() != nil {
		return err
	}
	var names []string
	for _, m := range folders {
		names = append(names, m.Source)
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
		"Root in the sandbox has left files that this user cannot remove, and a container could not remove them either (%v): remove them as root with 'rm -r %s'; the removal of the sandbox then continues by itself.",
		err, strings.Join(names, " ")).Because(err)
}

// unremovable returns the mounts of those folders that the daemon's user may be unable to
// remove.
func (l *Loop) unremovable(sandboxID string) (folders []runtime.Mount, err error) {
	if !l.opts.Unprivileged {
		return nil, nil
	}
	for _, m := range []runtime.Mount{
		{Source: l.paths.GuestLink(sandboxID), Target: paths.InContainerLink},
		{Source: l.paths.SandboxLogs(sandboxID), Target: paths.InContainerLogs},
	} {
		removable, err := filesystem.Removable(m.Source)
		if err != nil {
			return nil, fmt.Errorf("look at the folders of the sandbox: %w", err)
		}
		if !removable {
			folders = append(folders, m)
		}
	}
	return folders, nil
}

// reclaimImage stops the primary, which could make the folders unremovable again, and
// returns its image. Without a primary it is the image of the spec.
func (l *Loop) reclaimImage(ctx context.Context, sb ledger.Sandbox, inv runtime.Inventory) (id string, err error) {
	at := slices.IndexFunc(inv.Containers, func(c runtime.Container) bool { return c.Role == runtime.RolePrimary })
	if at < 0 {
		err = l.verb(ctx, verbTimeout, func(ctx context.Context) error {
			image, err := l.image(ctx, ctx, sb, sb.Spec, "")
			id = image.ID
			return err
		})
		return id, err
	}
	primary := inv.Containers[at].ID
	if err := l.stopContainer(ctx, primary, removeGrace); err != nil {
		return "", err
	}
	err = l.verb(ctx, lookTimeout, func(ctx context.Context) error {
		made, err := l.engine.DescribeContainer(ctx, primary)
		id = made.ImageID
		return err
	})
	return id, err
}

// reclaimerSpec describes a container with the rights of root over the folders, and with
// nothing else.
func (l *Loop) reclaimerSpec(sb ledger.Sandbox, imageID string, folders []runtime.Mount, info runtime.EngineInfo) runtime.ContainerSpec {
	uid, gid := os.Getuid(), os.Getgid()
	if info.Remapped() {
		uid, gid = -1, -1 // the folders belong to the daemon's user, who has no id in there
	}
	return runtime.ContainerSpec{
		Identity:    l.identity(sb, runtime.RoleReclaimer),
		Name:        runtime.ReclaimerName(sb.ID),
		Hostname:    hostname(sb),
		ImageID:     imageID,
		Entrypoint:  []string{paths.InContainerInit, "reclaim"},
		Cmd:         []string{strconv.Itoa(uid), strconv.Itoa(gid)},
		Env:         process.SupervisorGoVariables(),
		User:        "0:0",
		WorkingDir:  "/",
		NetworkID:   runtime.NoNetwork,
		Mounts:      append([]runtime.Mount{{Source: l.opts.Supervisor, Target: paths.InContainerInit, ReadOnly: true}}, folders...),
		Healthcheck: &runtime.Healthcheck{Test: []string{"NONE"}},
		Limits:      runtime.Limits{Memory: reclaimerMemory, PIDs: reclaimerPIDs},
		Security: runtime.Security{
			CapDrop: []string{"ALL"}, CapAdd: []string{"CHOWN", "DAC_OVERRIDE", "FOWNER"}, ReadOnlyRoot: true,
		},
	}
}

// runReclaimer makes the container, or finds one that an earlier daemon has made, and
// runs it to its end. It is removed in any case, so the next attempt makes a new one.
func (l *Loop) runReclaimer(ctx context.Context, spec runtime.ContainerSpec) error {
	if _, err := l.restoreSupervisor(l.opts.Supervisor); err != nil {
		return err
	}
	id, err := ask(ctx, l, verbTimeout, l.engine.EnsureContainer, spec)
	if err != nil {
		return err
	}
	err = l.verb(ctx, verbTimeout, func(ctx context.Context) error { return l.engine.StartContainer(ctx, id) })
	if err == nil {
		err = l.awaitReclaimer(ctx, id)
	}
	return errors.Join(err, l.verb(ctx, verbTimeout, func(ctx context.Context) error { return l.engine.RemoveContainer(ctx, id) }))
}

// awaitReclaimer waits for the end of a reclaimer. One that takes longer than a verb may
// take is removed, and the next attempt continues its work.
func (l *Loop) awaitReclaimer(ctx context.Context, id string) error {
	return l.inSlot(ctx, l.stops, verbTimeout, func(ctx context.Context) error {
		code, err := l.engine.WaitContainer(ctx, id)
		if err != nil || code == 0 {
			return err
		}
		var said bytes.Buffer
		if err := l.engine.ContainerLogs(ctx, id, runtime.LogOptions{Tail: 1}, &said, &said); err != nil {
			l.log.Debug("the output of a reclaimer cannot be read", "id", id, "error", err)
		}
		return fmt.Errorf("it ended with exit code %d: %s", code, strings.TrimSpace(said.String()))
	})
}

// removeGuestFiles removes the files for the supervisor of a sandbox, and what clients keep
// about it.
func (l *Loop) removeGuestFiles(ctx context.Context, sandboxID string) error {
	ctx, cancel := context.WithTimeout(ctx, verbTimeout)
	defer cancel()
	return errors.Join(filesystem.RemoveAll(ctx, l.paths.Guest(sandboxID)), filesystem.RemoveAll(ctx, l.paths.Records(sandboxID)))
}
