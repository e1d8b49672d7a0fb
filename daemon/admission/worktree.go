package admission

import (
	"cmp"
	"path"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/spec"
)

// gitOfWorktree adds the mount of the repository of a workspace that is a worktree of git
// and is mounted: git finds the repository by its path. If it cannot be mounted, or if the
// repository of a copy cannot be copied, a notice says so.
func (c *Controller) gitOfWorktree(check hostfiles.Checker, result *spec.Result, resolved *agboxv1.CreateSpec) {
	w := resolved.GetWorkspace()
	if w == nil {
		return
	}
	notice := func(why, remedy string) {
		result.Notice([]any{"workspace", "source"}, "git will not work in the workspace, because %s%s", strings.TrimSuffix(why, "."), remedy)
	}
	found, err := hostfiles.FindRepository(w.GetSource())
	if err != nil {
		notice(err.Error(), "")
		return
	}
	if found == nil {
		return
	}
	mount := &agboxv1.MountSpec{Source: found.Common, Target: found.Inside(cmp.Or(w.GetTarget(), spec.DefaultWorkspace)), Writable: w.GetMount()}
	held, err := check.Hold(found.Common, hostfiles.MountUse(w.GetMount()), resolved.GetSecurity().GetAllowDangerousMounts())
	if err == nil {
		if w.GetMount() && !resolved.GetSecurity().GetWritableConfig() {
			_, err = check.Covers(held)
		}
		held.Close()
	}
	const copyIt = ": copy the folder in instead of mounting it"
	switch {
	case err != nil && fault.Of(err) != nil && w.GetMount():
		notice(fault.Of(err).Message, copyIt)
	case err != nil:
		notice(err.Error(), "")
	case !w.GetMount():
	case !found.Worktree():
		notice("it is a submodule, whose settings name its path on this machine", ": mount the repository that has it, or copy the folder in instead of mounting it")
	case !mountable(resolved, mount.GetTarget()):
		notice("its repository would be at "+mount.GetTarget()+", where the sandbox has something else", copyIt)
	case !slices.ContainsFunc(resolved.GetMounts(), func(m *agboxv1.MountSpec) bool { return m.GetTarget() == mount.GetTarget() }):
		resolved.Mounts = append(resolved.Mounts, mount)
	}
}

// mountable reports whether a repository can be mounted at a path.
func mountable(s *agboxv1.CreateSpec, target string) bool {
	work := cmp.Or(s.GetWorkspace().GetTarget(), spec.DefaultWorkspace)
	return path.IsAbs(target) && path.IsAbs(work) && strings.Count(path.Clean(target), "/") > 1 &&
		!strings.HasPrefix(target+"/", work+"/") && !strings.HasPrefix(work, target+"/")
}

// worktreeRequest adds the request for the repository of a mounted worktree.
func (l *requestList) worktreeRequest(s *agboxv1.CreateSpec) {
	found, err := hostfiles.FindRepository(s.GetWorkspace().GetSource())
	if err != nil || found == nil {
		return
	}
	for i, m := range s.GetMounts() {
		if m.GetSource() == found.Common && l.implied(i) {
			l.add([]any{"workspace", "mount"}, "mount", true, "%s at %s, writable: the git repository of this worktree", m.GetSource(), m.GetTarget())
		}
	}
}

// implied reports whether a mount follows from another field: neither a file nor the caller
// has named it.
func (l *requestList) implied(mount int) bool { return mount >= len(l.result.Origin("mounts").Items) }
