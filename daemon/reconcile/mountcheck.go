package reconcile

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime"
)

// pinMounts opens the sources of all mounts of a primary, checks them and writes to the
// boot configuration which files they are. The supervisor compares them with what the
// engine has mounted. The caller calls release after the start: as long as a file is open,
// no other one gets its inode number.
func (l *Loop) pinMounts(ctx context.Context, sb ledger.Sandbox, primaryID string) (release func(), err error) {
	var held []*hostfiles.Source
	release = func() {
		for _, one := range held {
			one.Close()
		}
	}
	if !mountsHost(sb.Spec) {
		return release, nil
	}
	defer func() {
		if err != nil {
			release()
		}
	}()
	all, err := l.mountsOf(ctx, primaryID)
	if err != nil {
		return release, err
	}
	file := l.paths.GuestBoot(sb.ID)
	boot, err := readBoot(file)
	if err != nil {
		return release, l.unwritable(err)
	}
	open := func(path string) (filesystem.FileID, *hostfiles.Source, error) {
		one, err := hostfiles.Again(path)
		if err != nil {
			return filesystem.FileID{}, nil, err
		}
		held = append(held, one)
		id, err := one.Identity()
		return id, one, err
	}
	boot.Mounts = nil
	for _, m := range all {
		id, source, err := open(m.Source)
		if err == nil && !covering(m, all) {
			err = l.host.Bounded(source, hostfiles.MountUse(!m.ReadOnly), l.byTool(sb.Spec, m.Source))
		}
		if err != nil {
			return release, err
		}
		boot.Mounts = append(boot.Mounts, &guestv1.HostMount{Source: m.Source, Target: m.Target, File: bootIdentity(id)})
	}
	link, err := filesystem.IDOfPath(l.paths.GuestLink(sb.ID))
	if err == nil {
		boot.Link = bootIdentity(link)
		err = saveBoot(file, boot)
	}
	if err != nil {
		return release, l.unwritable(err)
	}
	return release, nil
}

// mountsHost reports whether the primary of a spec mounts paths of the host.
func mountsHost(s *agboxv1.CreateSpec) bool {
	return len(s.GetMounts()) > 0 || s.GetWorkspace().GetMount() || slices.ContainsFunc(s.GetToolProjections(), func(p *agboxv1.ToolProjection) bool {
		return p.GetKind() != agboxv1.ProjectionKind_PROJECTION_KIND_COPY
	})
}

// mountsOf returns the paths of the host that a container mounts, without agbox's own:
// first what the spec asks for, then the covers. They may not be those that a new container
// would mount, because the project has changed since.
func (l *Loop) mountsOf(ctx context.Context, containerID string) ([]runtime.Mount, error) {
	made, err := ask(ctx, l, lookTimeout, l.engine.DescribeContainer, containerID)
	own := []string{paths.InContainerInit, paths.InContainerBoot, paths.InContainerLink, paths.InContainerLogs}
	all := slices.DeleteFunc(slices.Clone(made.Mounts), func(m runtime.Mount) bool { return m.Source == "" || slices.Contains(own, m.Target) })
	slices.SortFunc(all, func(a, b runtime.Mount) int { return strings.Compare(a.Target, b.Target) })
	slices.SortStableFunc(all, func(a, b runtime.Mount) int { return rank(covering(a, all)) - rank(covering(b, all)) })
	return all, err
}

func rank(cover bool) int {
	if cover {
		return 1
	}
	return 0
}

// covering reports whether a mount is a cover: a part of another mount, mounted over
// itself.
func covering(m runtime.Mount, all []runtime.Mount) bool {
	return slices.ContainsFunc(all, func(whole runtime.Mount) bool {
		part, below := strings.CutPrefix(m.Target, strings.TrimSuffix(whole.Target, "/")+"/")
		return below && m.Source == path.Join(whole.Source, part)
	})
}

// byTool reports whether a built-in tool brings in a source.
func (l *Loop) byTool(s *agboxv1.CreateSpec, source string) bool {
	return slices.ContainsFunc(s.GetToolProjections(), func(p *agboxv1.ToolProjection) bool {
		if p.GetSource() == source {
			return true
		}
		held, err := l.host.HoldForTool(p.GetSource(), hostfiles.ReadOnly)
		if err != nil {
			return false
		}
		defer held.Close()
		return held.Path == source
	})
}

// withMountProblem replaces the event of a failure if the supervisor has refused to run
// because of a mount. Its exit code says which one.
func (l *Loop) withMountProblem(sandboxID string, ev *agboxv1.SandboxEvent, o machine.Observation) *agboxv1.SandboxEvent {
	if ev.GetEventType() != agboxv1.EventType_SANDBOX_FAILED || o.Primary == nil || o.Primary.State == runtime.StateRunning {
		return ev
	}
	problem, ok := filesystem.MountProblemOf(o.Primary.ExitCode)
	if !ok {
		return ev
	}
	name := "a path of the host"
	boot, err := readBoot(l.paths.GuestBoot(sandboxID))
	if all := boot.GetMounts(); err == nil && problem.Index < min(len(all), filesystem.Span-1) {
		name = fmt.Sprintf("%s at %s", all[problem.Index].GetSource(), all[problem.Index].GetTarget())
	}
	if problem.Unseen {
		return machine.Failure(agboxv1.ErrorReason_HOST_PATH_UNUSABLE, fmt.Sprintf(
			"The mount of %s could not be compared with the file that was checked, because root in the sandbox may not look into the folder above it, so no command was run: leave it the capability DAC_OVERRIDE, or open that folder to it.", name))
	}
	return machine.Failure(agboxv1.ErrorReason_HOST_PATH_UNUSABLE, fmt.Sprintf(
		"The mount of %s is not the file or folder that was checked, because something replaced it during the start, so no command was run: find out what replaces it, then start the sandbox again or create it again.", name))
}
