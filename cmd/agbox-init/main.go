// Command agbox-init is PID 1 of a sandbox's primary container: it starts execs,
// writes their output to log files and tells the daemon how they end. Under the name
// agbox-agent it is the command that agents report with.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/internal/version"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/agentcli"
	"github.com/agbox/agbox/runtime/supervisor"
)

// gcPercent is half of Go's default, so half as much garbage stays in memory. There is
// one supervisor per sandbox, and collecting its small heap costs almost nothing.
const gcPercent = 50

func main() {
	if agentcli.Is(os.Args[0]) {
		os.Exit(agentcli.Run(context.Background(), os.Args[1:], os.Environ(), os.Stdin, os.Stdout, os.Stderr))
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "agbox-init:", err)
		if differs, ok := errors.AsType[mountError](err); ok {
			os.Exit(differs.ExitCode())
		}
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) > 1 && os.Args[1] == reclaimVerb {
		return reclaim(os.Args[2:])
	}
	boot := flag.String("boot", paths.InContainerBoot, "boot configuration written by the daemon")
	link := flag.String("link", paths.InContainerLink, "folder for the socket")
	logs := flag.String("logs", paths.InContainerLogs, "folder for log and status files")
	run := flag.String("run", paths.InContainerRun, "folder for the agent socket")
	passwd := flag.String("passwd", "/etc/passwd", "user file of the container")
	group := flag.String("group", "/etc/group", "group file of the container")
	grace := flag.Duration("grace", supervisor.DefaultGrace, "time between SIGTERM and SIGKILL at the end")
	flag.Parse()

	supervisor.ReserveThreads()
	process.StandApart()
	debug.SetGCPercent(gcPercent)
	// No process in the container may read the supervisor's memory or trace it.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	cfg := supervisor.Config{
		LinkDir: *link, LogDir: *logs, RunDir: *run, Helper: paths.InContainerInit,
		Passwd: *passwd, Group: *group, Hostname: "/etc/hostname", Hosts: "/etc/hosts", Version: version.Version, Grace: *grace,
	}
	var err error
	if cfg.Boot, err = supervisor.LoadBoot(*boot); err != nil {
		return err
	}
	if problem := compareMounts(cfg.Boot, *link); problem != nil {
		return mountError{*problem, cfg.Boot.GetMounts()[problem.Index]}
	}
	if err := supervisor.MatchUser(cfg); errors.Is(err, supervisor.ErrHomeUnfinished) || errors.Is(err, supervisor.ErrHomeLeft) {
		fmt.Fprintln(os.Stderr, "agbox-init:", err)
	} else if err != nil {
		// Programs of another user may not need to write the folder.
		fmt.Fprintln(os.Stderr, "agbox-init: the user of commands keeps its ids:", err)
	}
	rest, _ := process.SplitGoVariables(os.Environ())
	cfg.Env = append(rest, cfg.Boot.GetCommandEnv()...)
	s, err := supervisor.New(cfg)
	if err != nil {
		return err
	}
	return s.Run(context.Background(), silence)
}

// compareMounts returns the first mount that is not the one that the daemon checked; nil if
// there is none.
func compareMounts(boot *guestv1.BootConfig, link string) *filesystem.MountProblem {
	var mounts []filesystem.Mount
	for _, m := range boot.GetMounts() {
		mounts = append(mounts, filesystem.Mount{Target: m.GetTarget(), File: identity(m.GetFile())})
	}
	return filesystem.CompareMounts(mounts, link, identity(boot.GetLink()))
}

func identity(id *guestv1.FileIdentity) filesystem.FileID {
	return filesystem.FileID{Device: id.GetDevice(), Inode: id.GetInode(), Type: id.GetType()}
}

// mountError is a mount that is not the one that the daemon checked. Nothing may run.
type mountError struct {
	filesystem.MountProblem
	mount *guestv1.HostMount
}

func (e mountError) Error() string {
	if e.Unseen {
		return fmt.Sprintf("the mount of %s at %s cannot be examined", e.mount.GetSource(), e.mount.GetTarget())
	}
	return fmt.Sprintf("the mount of %s at %s is not the file that was checked", e.mount.GetSource(), e.mount.GetTarget())
}

// silence redirects standard input, output and error to /dev/null: a write to an output
// that the engine does not read would block forever. It is called once the socket
// exists; until then, errors go to the container's output.
func silence() {
	in, out := nowhere()
	_ = unix.Dup3(in, 0, 0)
	_ = unix.Dup3(out, 1, 0)
	_ = unix.Dup3(out, 2, 0)
	_ = unix.Close(in)
	if out != in {
		_ = unix.Close(out)
	}
}

// nowhere returns a descriptor to read from and one to write to: /dev/null, or closed
// pipes if the image has no /dev/null.
func nowhere() (in, out int) {
	const flags = unix.O_RDWR | unix.O_CLOEXEC
	if fd, err := unix.Open(os.DevNull, flags, 0); err == nil {
		return fd, fd
	}
	var read, write [2]int
	_ = unix.Pipe2(read[:], unix.O_CLOEXEC)
	_ = unix.Pipe2(write[:], unix.O_CLOEXEC)
	_ = unix.Close(read[1])
	_ = unix.Close(write[0])
	return read[0], write[1]
}

// reclaimVerb as the first argument makes this program remove what root in a sandbox has
// put into the folders of the host, instead of supervising.
const reclaimVerb = "reclaim"

// reclaim gives the folder of the socket and that of the logs to a user and removes from
// them what the user may be unable to remove. The logs stay. The arguments are the ids of
// the user and its group, or -1 if the folders belong to it.
func reclaim(arguments []string) error {
	var uid, gid int
	if len(arguments) != 2 {
		return fmt.Errorf("%s needs a user id and a group id, and has %q", reclaimVerb, arguments)
	}
	for i, id := range []*int{&uid, &gid} {
		if _, err := fmt.Sscan(arguments[i], id); err != nil {
			return fmt.Errorf("%s: %q is no id: %w", reclaimVerb, arguments[i], err)
		}
	}
	ctx := context.Background()
	return errors.Join(
		filesystem.Reclaim(ctx, paths.InContainerLink, uid, gid, filesystem.Everything),
		filesystem.Reclaim(ctx, paths.InContainerLogs, uid, gid, filesystem.Directories))
}
