package reconcile

import (
	"context"
	"errors"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/runtime"
)

// In an engine that gives containers user namespaces, root in a sandbox is an ordinary
// user of the host, who could neither read the boot configuration nor write the logs. The
// daemon's user has no id in there, so the supervisor cannot give it what it writes.
//
// A daemon of root gives the files to that user. Another daemon may not. It gives the user
// rights on them, and itself rights on what the supervisor will make in the folders. The
// folders are in one that only the daemon's user can enter.

// share makes the files that the supervisor uses accessible to root in the sandbox.
func (l *Loop) share(ctx context.Context, sandboxID string) error {
	info, err := l.engineInfo(ctx)
	if err != nil || !info.Remapped() {
		return err
	}
	boot, folders := l.paths.GuestBoot(sandboxID), []string{l.paths.GuestLink(sandboxID), l.paths.SandboxLogs(sandboxID)}
	if l.unprivileged {
		err = grant(info.RootUID, boot, folders)
	} else {
		err = give(info, append(folders, boot))
	}
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
			"The engine gives containers user namespaces, but the file system of %s has no access control lists, by which this user could give files to root in the sandbox: move the data directory to ext4, xfs or btrfs, or run the daemon as root.", l.paths.Data).Because(err)
	case err != nil:
		return l.unwritable(err)
	}
	return nil
}

// give changes the owner of files.
func give(info runtime.EngineInfo, files []string) error {
	for _, path := range files {
		if err := os.Lchown(path, info.RootUID, info.RootGID); err != nil {
			return err
		}
	}
	return nil
}

// grant gives a user rights on files, and this process' user rights on what will be made
// in the folders.
func grant(uid int, boot string, folders []string) error {
	if err := filesystem.Grant(boot, uid, filesystem.MayRead); err != nil {
		return err
	}
	for _, folder := range folders {
		if err := filesystem.Grant(folder, uid, filesystem.MayRead|filesystem.MayWrite|filesystem.MayUse); err != nil {
			return err
		}
		if err := filesystem.GrantNew(folder, os.Geteuid(), filesystem.MayRead|filesystem.MayWrite|filesystem.MayUse); err != nil {
			return err
		}
	}
	return nil
}

// setOwner says in a boot configuration to whom the supervisor gives what it writes. In a
// user namespace it keeps the files.
func (l *Loop) setOwner(boot *guestv1.BootConfig, info runtime.EngineInfo) {
	if info.Remapped() {
		boot.GroupAccess = l.unprivileged
		return
	}
	boot.OwnerUid, boot.OwnerGid = uint32(os.Getuid()), uint32(os.Getgid())
}
