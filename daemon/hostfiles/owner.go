package hostfiles

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/workspace/archive"
)

// Numbers returns the owner that the copy names, root if it names none. The error is a
// fault INVALID_REQUEST.
func (one Copy) Numbers() (archive.Owner, error) {
	uid, gid, both := strings.Cut(one.Owner, ":")
	if !both {
		gid = uid
	}
	var owner archive.Owner
	for _, id := range []struct {
		text string
		to   *int
	}{{uid, &owner.UID}, {gid, &owner.GID}} {
		n, err := strconv.ParseUint(cmp.Or(id.text, "0"), 10, 32)
		if err != nil {
			return owner, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"The owner %q is not uid or uid:gid: write numbers, for example 1000:1000.", one.Owner)
		}
		*id.to = int(n)
	}
	return owner, nil
}
