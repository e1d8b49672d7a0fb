package admission

import (
	"os"
	"strconv"
	"strings"
	"syscall"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec"
)

// keepsIDs adds a notice if the user will not get the ids of the owner of the folder that
// match_user names, and cannot write there.
func keepsIDs(result *spec.Result, resolved *agboxv1.CreateSpec) {
	name, _, _ := strings.Cut(resolved.GetUser(), ":")
	source := spec.OnHost(resolved, resolved.GetMatchUser())
	if source == "" || name == "" || name == "root" {
		return
	}
	info, err := os.Stat(source)
	if err != nil {
		return // reported elsewhere
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return
	}
	id, err := strconv.ParseUint(name, 10, 32)
	number := err == nil
	switch {
	case number && (id == 0 || uint32(id) == owner.Uid):
	case owner.Uid == 0:
		result.Notice([]any{"user"}, "The user %s may be unable to write %s, because it belongs to root: give the folder to another user, or write the user root", name, source)
	case number:
		result.Notice([]any{"user"}, "The user %s is a number, so it does not get the id of the owner of %s and may be unable to write it: write its name, or the number %d", name, source, owner.Uid)
	case resolved.GetSecurity().GetReadOnlyRoot():
		result.Notice([]any{"user"}, "The user %s may be unable to write %s, because its id cannot be changed in a root that is read-only: write the number %d", name, source, owner.Uid)
	}
}
