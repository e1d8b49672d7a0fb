package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/retention"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/ids"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
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
	return saveBoot(l.paths.GuestBoot(sb.ID), l.bootOf(sb, image, home, info))
}

func (l *Loop) bootOf(sb ledger.Sandbox, image runtime.Image, home string, info runtime.EngineInfo) *guestv1.BootConfig {
	boot := &guestv1.BootConfig{
		Command: mainCommand(sb.Spec, image),
		User:    defaultUser(sb.Spec, image),
		Cwd:     cmp.Or(sb.Spec.GetWorkingDir(), inHome(workspaceTarget(sb.Spec), home), image.WorkingDir),

		MainExecId:         ids.Main(sb.ID),
		MaxLogBytes:        l.opts.MaxExecLog,
		MaxSandboxLogBytes: l.opts.MaxSandboxLog,
		MaxFolderBytes:     retention.Bytes(l.opts.MaxSandboxLog),
		MaxFolderFiles:     l.opts.MaxFolderFiles,
		HoldCommand:        commandWaits(sb) && (sb.Copied || !sb.WasReady) || sb.Pool != "" || sb.Taken,
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
	return boot
}

func encodeBoot(boot *guestv1.BootConfig) ([]byte, error) {
	raw, err := boot.MarshalVT()
	if err == nil {
		err = new(guestv1.BootConfig).UnmarshalVT(raw) // refuses text that is not UTF-8, as the supervisor would
	}
	if err != nil {
		return nil, fmt.Errorf("encode the supervisor's boot configuration: %w", err)
	}
	return raw, nil
}

// saveBoot replaces a boot configuration.
func saveBoot(file string, boot *guestv1.BootConfig) error {
	raw, err := encodeBoot(boot)
	if err != nil {
		return err
	}
	// Write a temporary file first: the container must never see an incomplete one.
	temp := filepath.Join(filepath.Dir(file), ".boot.pb.new")
	if err := os.WriteFile(temp, raw, 0o600); err != nil {
		return fmt.Errorf("write the supervisor's boot configuration: %w", err)
	}
	return os.Rename(temp, file)
}

// overwriteBoot changes a boot configuration in its place, because a running container has mounted it. Its
// supervisor has read it, and a daemon that dies here writes it anew before the sandbox is READY.
func overwriteBoot(file string, boot *guestv1.BootConfig) (err error) {
	raw, err := encodeBoot(boot)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write the supervisor's boot configuration: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// An empty one can be read if the daemon dies here, and a longer one with the end of the former one cannot.
	if err = f.Truncate(0); err == nil {
		_, err = f.Write(raw)
	}
	if err == nil {
		err = f.Sync() // from READY on nobody writes it anew
	}
	if err != nil {
		return fmt.Errorf("write the supervisor's boot configuration: %w", err)
	}
	return nil
}

// numberMain writes to the boot configuration which run of the sandbox's own command the
// next start makes. The supervisor counts its status files, but retention or a person may
// have removed them, and an exec id is never used twice.
func (l *Loop) numberMain(ctx context.Context, sb ledger.Sandbox) error {
	run, err := l.ledger.NextMainRun(ctx, sb.ID)
	if err != nil {
		return err
	}
	file := l.paths.GuestBoot(sb.ID)
	boot, err := readBoot(file)
	if err != nil {
		return l.unwritable(err)
	}
	if run == max(1, boot.GetMainRun()) {
		return nil
	}
	boot.MainRun = run
	if err := saveBoot(file, boot); err != nil {
		return l.unwritable(err)
	}
	return nil
}

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
	if l.opts.Unprivileged {
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
		boot.GroupAccess = l.opts.Unprivileged
		return
	}
	boot.OwnerUid, boot.OwnerGid = uint32(os.Getuid()), uint32(os.Getgid())
}

// startPrimary starts the container of a primary. If that fails because somebody has
// removed the binary of its supervisor, it makes the file again and repeats the start.
func (l *Loop) startPrimary(ctx context.Context, id string) error {
	start := func(ctx context.Context) error { return l.engine.StartContainer(ctx, id) }
	failed := l.verb(ctx, verbTimeout, start)
	if failed == nil || ctx.Err() != nil {
		return failed
	}
	made, err := ask(ctx, l, lookTimeout, l.engine.DescribeContainer, id)
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
	made, err := l.opts.InstallSupervisor()
	switch {
	case err != nil:
		return false, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
			"The supervisor %s was removed and cannot be made again (%v): repair that, and try again.", file, err).Because(err)
	case made == file:
		l.log.Warn("the supervisor's binary was removed and is made again", "file", file)
		return true, nil
	case file == l.opts.Supervisor:
		return false, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
			"The supervisor %s was removed, and another version is installed now: run \"agbox daemon upgrade\", and try again.", file)
	}
	return false, fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_PATH_UNUSABLE,
		"The supervisor %s of the sandbox was removed, and this agboxd has another version: put the file back from a backup, or remove the sandbox and create it again.", file)
}

func bootIdentity(id filesystem.FileID) *guestv1.FileIdentity {
	return &guestv1.FileIdentity{Device: id.Device, Inode: id.Inode, Type: id.Type}
}

// readBoot reads the boot configuration that saveBoot wrote.
func readBoot(file string) (*guestv1.BootConfig, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the supervisor's boot configuration: %w", err)
	}
	boot := new(guestv1.BootConfig)
	if err := boot.UnmarshalVT(raw); err != nil {
		return nil, fmt.Errorf("decode the supervisor's boot configuration: %w", err)
	}
	return boot, nil
}
