package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/secrets"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
)

// writeGuestFiles makes the files and folders that the primary mounts: the supervisor's
// boot configuration, the folder for its socket, and the log folder. home is what "~"
// stands for in targets.
func (l *Loop) writeGuestFiles(ctx context.Context, sb ledger.Sandbox, image runtime.Image, home string) error {
	info, err := l.engineInfo(ctx)
	if err != nil {
		return err
	}
	if err := l.makeGuestFolders(sb.ID); err != nil {
		return l.unwritable(err)
	}
	if err := l.writeBoot(sb, image, home, info); err != nil {
		return l.unwritable(err)
	}
	return nil
}

// restoreGuestFiles makes them again if somebody has removed them: the engine does not
// start a container if the source of a mount is missing. Existing ones stay as they are.
func (l *Loop) restoreGuestFiles(ctx context.Context, sb ledger.Sandbox, primaryID string) error {
	_, err := os.Lstat(l.paths.GuestBoot(sb.ID))
	switch {
	case err == nil:
		if err := l.makeGuestFolders(sb.ID); err != nil {
			return l.unwritable(err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return l.unwritable(err)
	}
	image, err := l.imageOf(ctx, primaryID)
	if err != nil {
		return err
	}
	home, err := l.home(ctx, sb, image, new(sandboxNetwork))
	if err != nil {
		return err
	}
	return l.writeGuestFiles(ctx, sb, image, home)
}

// imageOf returns the image that a container was made from. Its name may refer to another
// image by now.
func (l *Loop) imageOf(ctx context.Context, containerID string) (image runtime.Image, err error) {
	err = l.verb(ctx, lookTimeout, func(ctx context.Context) error {
		made, err := l.engine.DescribeContainer(ctx, containerID)
		if err != nil {
			return err
		}
		image, err = l.engine.EnsureImage(ctx, runtime.ImageRequest{Ref: made.ImageID, Policy: runtime.PullNever}, nil)
		return err
	})
	return image, err
}

// unwritable says what to do about an error of making the files of a sandbox.
func (l *Loop) unwritable(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.New(errdefs.ErrResourceExhausted, agboxv1.ErrorReason_FILE_SYSTEM_FULL,
			"No disk space is left in %s for the files of the sandbox: free some, and try again.", l.paths.Data).Because(err)
	}
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
		"The files of the sandbox cannot be written in %s (%v): repair that, and try again.", l.paths.Data, err).Because(err)
}

func (l *Loop) makeGuestFolders(sandboxID string) error {
	for _, dir := range []string{l.paths.GuestLink(sandboxID), l.paths.SandboxLogs(sandboxID)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the folders of the sandbox: %w", err)
		}
	}
	return nil
}

// writeBoot writes the supervisor's boot configuration.
func (l *Loop) writeBoot(sb ledger.Sandbox, image runtime.Image, home string, info runtime.EngineInfo) error {
	boot := &guestv1.BootConfig{
		Command: mainCommand(sb.Spec, image),
		User:    defaultUser(sb.Spec, image),
		Cwd:     cmp.Or(sb.Spec.GetWorkingDir(), inHome(workspaceTarget(sb.Spec), home), image.WorkingDir),

		MainExecId:         ids.Main(sb.ID),
		MaxLogBytes:        l.maxExecLog,
		MaxSandboxLogBytes: l.maxSandboxLog,
		MaxFolderBytes:     retention.Bytes(l.maxSandboxLog),
		MaxFolderFiles:     l.maxFolderFiles,
		HoldCommand:        len(hostfiles.Copies(sb.Spec)) > 0 && (sb.Copied || !sb.WasReady),
		CommandEnv:         commandEnv(sb.Spec, image),
		SecretEnvs:         secrets.Names(sb.Spec.GetEnvs(), sb.Spec.GetSecretEnvs()),
	}
	if sb.Spec.GetWorkspace().GetKeepCommandDir() && sb.Spec.GetWorkingDir() == "" {
		boot.ExecCwd, boot.Cwd = boot.GetCwd(), cmp.Or(image.WorkingDir, "/")
	}
	if spec.OnHost(sb.Spec, sb.Spec.GetMatchUser()) != "" {
		boot.MatchUser = sb.Spec.GetMatchUser()
		for _, v := range sb.Spec.GetVolumes() {
			boot.Volumes = append(boot.Volumes, v.GetTarget())
		}
	}
	l.setOwner(boot, info)
	return saveBoot(l.paths.GuestBoot(sb.ID), boot)
}

// saveBoot replaces a boot configuration.
func saveBoot(file string, boot *guestv1.BootConfig) error {
	raw, err := proto.Marshal(boot)
	if err != nil {
		return fmt.Errorf("encode the supervisor's boot configuration: %w", err)
	}
	// Write a temporary file first: the container must never see an incomplete one.
	temp := filepath.Join(filepath.Dir(file), ".boot.pb.new")
	if err := os.WriteFile(temp, raw, 0o600); err != nil {
		return fmt.Errorf("write the supervisor's boot configuration: %w", err)
	}
	return os.Rename(temp, file)
}
