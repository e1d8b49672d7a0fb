package admission

import (
	"cmp"
	"path"
	"slices"
	"strings"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
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

// repositoriesSearched adds a notice for each folder that is mounted writable and in which not all
// repositories of git can be found.
func repositoriesSearched(check hostfiles.Checker, result *spec.Result, resolved *agboxv1.CreateSpec) {
	if resolved.GetSecurity().GetWritableConfig() {
		return
	}
	look := func(source string, writable bool, path ...any) {
		if !writable {
			return
		}
		held, err := check.Hold(source, hostfiles.Writable, resolved.GetSecurity().GetAllowDangerousMounts())
		if err != nil {
			return // it is a problem of the spec
		}
		defer held.Close()
		if !check.Searched(held) {
			result.Notice(path, "repositories of git deep in %s may not be protected from the sandbox, because it has more folders than are looked at, or some that agboxd may not read: mount a smaller folder, or copy it in", source)
		}
	}
	for i, m := range resolved.GetMounts() {
		look(m.GetSource(), m.GetWritable(), "mounts", i, "source")
	}
	look(resolved.GetWorkspace().GetSource(), resolved.GetWorkspace().GetMount(), "workspace", "source")
}

// objectsOfOthers adds a notice for each folder of objects that the repository of the
// workspace borrows and that the sandbox will not have: git fails without it.
func objectsOfOthers(result *spec.Result, resolved *agboxv1.CreateSpec) {
	w := resolved.GetWorkspace()
	if w == nil {
		return
	}
	for _, one := range hostfiles.FindBorrowed(w.GetSource(), cmp.Or(w.GetTarget(), spec.DefaultWorkspace), w.GetMount()) {
		if slices.ContainsFunc(resolved.GetMounts(), func(m *agboxv1.MountSpec) bool {
			return strings.HasPrefix(one.Inside+"/", path.Clean(m.GetTarget())+"/")
		}) {
			continue
		}
		result.Notice([]any{"workspace", "source"},
			"git will not work in the workspace, because its repository borrows objects of %s: add --mount %[1]s:%[2]s, or let it have its own (`git repack -a -d`, then remove .git/objects/info/alternates)",
			one.Source, one.Inside)
	}
}
