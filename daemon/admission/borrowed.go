package admission

import (
	"cmp"
	"path"
	"slices"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/spec"
)

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
