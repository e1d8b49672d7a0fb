package reconcile

import (
	"context"
	"fmt"
	"os"

	"github.com/agbox/agbox/runtime"
)

// share gives the files that the supervisor uses to root in the sandbox, if the engine
// gives containers user namespaces: root there is an ordinary user of the host, who could
// neither read the boot configuration nor write the logs. The folder above belongs to the
// daemon's user and is closed to all others.
func (l *Loop) share(ctx context.Context, sandboxID string) error {
	info, err := l.engineInfo(ctx)
	if err != nil || !info.Remapped() {
		return err
	}
	for _, path := range []string{l.paths.GuestBoot(sandboxID), l.paths.GuestLink(sandboxID), l.paths.SandboxLogs(sandboxID)} {
		if err := os.Lchown(path, info.RootUID, info.RootGID); err != nil {
			return l.unwritable(fmt.Errorf("give the files of the sandbox to root in it: %w", err))
		}
	}
	return nil
}

// owner returns the ids, as the supervisor sees them, of the user to whom it gives what it
// writes for the host. The daemon's user has no id in a user namespace, so the files stay
// with root in there.
func owner(info runtime.EngineInfo) (uid, gid uint32) {
	if info.Remapped() {
		return 0, 0
	}
	return uint32(os.Getuid()), uint32(os.Getgid())
}
