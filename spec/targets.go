package spec

import (
	"cmp"
	"path"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/paths"
)

// DefaultWorkspace is the path of the workspace if the spec does not set one.
const DefaultWorkspace = "/workspace"

// OnHost returns the path on the host of a folder of the primary; "" if it lies on no mount.
func OnHost(s *agboxv1.CreateSpec, folder string) string {
	source, longest := "", -1
	add := func(target, from string) {
		below, on := strings.CutPrefix(path.Clean(folder)+"/", path.Clean(target)+"/")
		if on && len(target) > longest {
			source, longest = path.Join(from, below), len(target)
		}
	}
	if folder == "" {
		return ""
	}
	for _, m := range s.GetMounts() {
		add(m.GetTarget(), m.GetSource())
	}
	if w := s.GetWorkspace(); w.GetMount() {
		add(cmp.Or(w.GetTarget(), DefaultWorkspace), w.GetSource())
	}
	return source
}

// supervisors are the supervisor's own paths in the primary.
var supervisors = []string{path.Dir(paths.InContainerInit), paths.InContainerLogs}

// target is a path inside a container at which something is mounted or copied.
type target struct {
	where string
	path  []any
	// copied marks a copy. A copy may go into a mount but not over another copy.
	copied bool
}

// primaryTargets checks all target paths of the primary.
func (r *resolver) primaryTargets() {
	s := r.spec
	all := containerTargets(s.GetTmpfs(), s.GetVolumes(), nil)
	for i, m := range s.GetMounts() {
		all = append(all, target{where: m.GetTarget(), path: []any{"mounts", i, "target"}})
	}
	for i, c := range s.GetCopies() {
		all = append(all, target{where: c.GetTarget(), path: []any{"copies", i, "target"}, copied: true})
	}
	if w := s.GetWorkspace(); w != nil {
		where := w.GetTarget()
		if where == "" {
			where = DefaultWorkspace
		}
		all = append(all, target{where: where, path: []any{"workspace", "target"}, copied: !w.GetMount()})
		r.copyOnly(w)
	}
	r.targets(all, supervisors)
}

// copyOnly reports fields of a workspace that have no effect when it is mounted.
func (r *resolver) copyOnly(w *agboxv1.WorkspaceSpec) {
	if !w.GetMount() {
		return
	}
	if len(w.GetExcludePatterns()) > 0 {
		r.problem([]any{"workspace", "exclude_patterns"}, "A workspace that is mounted is seen as a whole: leave exclude_patterns out, or write 'mount: false'")
	}
	if w.GetTracked() {
		r.problem([]any{"workspace", "tracked"}, "A workspace that is mounted is seen as a whole: leave tracked out, or write 'mount: false'")
	}
	if w.GetUseGitignore() {
		r.problem([]any{"workspace", "use_gitignore"}, "A workspace that is mounted is seen as a whole: leave use_gitignore out, or write 'mount: false'")
	}
}

// serviceTargets checks all target paths of a service.
func (r *resolver) serviceTargets(s *agboxv1.ServiceSpec, at []any) {
	all := containerTargets(s.GetTmpfs(), s.GetVolumes(), at)
	for i, c := range s.GetCopies() {
		where := slices.Concat(at, []any{"copies", i})
		all = append(all, target{where: c.GetTarget(), path: append(where, "target"), copied: true})
		if strings.HasPrefix(c.GetTarget(), "~") {
			r.problem(append(where, "target"), "A service has no home that is known before it runs: write an absolute path")
		}
	}
	if len(s.GetCopies()) > 0 && s.GetSecurity().GetReadOnlyRoot() {
		r.problem(append(slices.Clip(at), "copies"), "Nothing can be copied into a service whose root is read-only: remove read_only_root or copies")
	}
	r.targets(all, nil)
}

func containerTargets(tmpfs []*agboxv1.TmpfsSpec, volumes []*agboxv1.VolumeSpec, at []any) []target {
	var all []target
	for i, t := range tmpfs {
		all = append(all, target{where: t.GetTarget(), path: slices.Concat(at, []any{"tmpfs", i, "target"})})
	}
	for i, v := range volumes {
		all = append(all, target{where: v.GetTarget(), path: slices.Concat(at, []any{"volumes", i, "target"})})
	}
	return all
}

// targets checks the target paths of one container. reserved are paths that are taken.
func (r *resolver) targets(all []target, reserved []string) {
	type taken struct {
		where  string
		copied bool
	}
	seen := make(map[taken][]any)
	slices.SortStableFunc(all, func(a, b target) int { return r.before(a.path, b.path) })
	for _, t := range all {
		if !strings.HasPrefix(t.where, "/") && t.where != "~" && !strings.HasPrefix(t.where, "~/") {
			continue // reported by the rules
		}
		clean := path.Clean(t.where)
		if slices.Contains(strings.Split(t.where, "/"), "..") {
			r.problem(t.path, "%.80q has '..' in it: write the path without", t.where)
			continue
		}
		if why := unfit(clean, t.copied, reserved); why != "" {
			r.problem(t.path, "Nothing can be put at %.80s, %s", t.where, why)
			continue
		}
		if before := seen[taken{clean, t.copied}]; before != nil {
			r.problem(t.path, "Something else is put at %.80s already (%s): choose another target, or remove one of the two", clean, r.whereIs(before))
			continue
		}
		seen[taken{clean, t.copied}] = t.path
	}
}

// UnfitForMount says why nothing can be mounted at an absolute path of the primary. It is
// empty if something can.
func UnfitForMount(where string) string { return unfit(path.Clean(where), false, supervisors) }

// unfit says why a path cannot be a target.
func unfit(where string, copied bool, reserved []string) string {
	if where == "/" {
		return "because it is the root of the container: choose a folder below it"
	}
	for _, own := range reserved {
		if within(where, own) {
			return "where agbox keeps its own files: choose another folder"
		}
	}
	for _, kernel := range []string{"/proc", "/sys"} {
		if within(where, kernel) {
			return "which belongs to the kernel: choose another folder"
		}
	}
	switch {
	case where == "/dev":
		return "which the engine fills itself: choose a folder below it"
	case where == "/dev/shm" && !copied:
		return "which is there already: set shm_size instead"
	}
	return ""
}
