package reconcile

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
)

// home returns what "~" stands for in the targets that must be known before the
// primary is made: the home of the default user of execs, which the supervisor also
// sets as HOME. It is empty if no such target begins with "~". A user without an entry
// in the image's /etc/passwd has the home "/". The published daemon takes /home/agbox for
// it but documents the home of the user, which is what agbox uses.
func (l *Loop) home(ctx context.Context, sb ledger.Sandbox, image runtime.Image, n *sandboxNetwork) (string, error) {
	if !homeTargets(sb.Spec) {
		return "", nil
	}
	network, err := l.network(ctx, sb, n)
	if err != nil {
		return "", err
	}
	passwd, group, err := l.userFiles(ctx, sb, image, network)
	if err != nil {
		return "", err
	}
	who, err := hostfiles.LookUpUser(defaultUser(sb.Spec, image), passwd, group)
	if err != nil {
		return "", err
	}
	return who.Home, nil
}

// homeTargets reports whether the target of a mount or of the workspace is below "~".
// The workspace counts also if it is copied, because it is the working directory.
func homeTargets(s *agboxv1.CreateSpec) bool {
	return hostfiles.InHome(s.GetWorkspace().GetTarget()) ||
		slices.ContainsFunc(s.GetMounts(), func(m *agboxv1.MountSpec) bool { return hostfiles.InHome(m.GetTarget()) })
}

// userFiles reads /etc/passwd and /etc/group of an image. The engine reads files only
// from containers, so it makes one that is never started. One that an earlier daemon
// left behind is found by its name.
func (l *Loop) userFiles(ctx context.Context, sb ledger.Sandbox, image runtime.Image, network runtime.Network) (passwd, group []byte, err error) {
	var id string
	err = l.verb(ctx, verbTimeout, func(ctx context.Context) (err error) {
		id, err = l.engine.EnsureContainer(ctx, runtime.ContainerSpec{
			Identity:   l.identity(sb, runtime.RoleImageReader),
			Name:       runtime.ImageReaderName(sb.ID),
			Hostname:   hostname(sb),
			ImageID:    image.ID,
			Entrypoint: []string{paths.InContainerInit}, // the engine wants one
			NetworkID:  network.ID,
		})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	err = l.verb(ctx, lookTimeout, func(ctx context.Context) (err error) {
		if passwd, err = l.engine.ReadFile(ctx, id, "/etc/passwd", hostfiles.MaxUserFile); err != nil {
			return err
		}
		group, err = l.engine.ReadFile(ctx, id, "/etc/group", hostfiles.MaxUserFile)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return passwd, group, l.verb(ctx, verbTimeout, func(ctx context.Context) error { return l.engine.RemoveContainer(ctx, id) })
}

// expanded returns the mounts with "~" in their targets replaced by home.
func expanded(mounts []runtime.Mount, home string) ([]runtime.Mount, error) {
	for i, m := range mounts {
		if !hostfiles.InHome(m.Target) {
			continue
		}
		mounts[i].Target = inHome(m.Target, home)
		if why := spec.UnfitForMount(mounts[i].Target); why != "" {
			return nil, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"Nothing can be put at %s (%s is the home of the user), %s.", m.Target, home, why)
		}
	}
	return mounts, nil
}

// inHome replaces "~" at the beginning of a target.
func inHome(target, home string) string {
	if !hostfiles.InHome(target) {
		return target
	}
	return path.Join(home, strings.TrimPrefix(target, "~"))
}
