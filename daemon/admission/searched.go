package admission

import (
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/spec"
)

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
