package hostfiles

import (
	"bytes"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/user"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

// MaxUserFile bounds the files of users and groups of an image, in bytes.
const MaxUserFile = 1 << 20

// InHome reports whether a target is the home of the user of execs or below it: "~", or
// "~/" and more.
func InHome(target string) bool { return target == "~" || strings.HasPrefix(target, "~/") }

// LookUpUser finds a user, uid, user:group or uid:gid in the files of a container. The
// Home is absolute; it is "/" without an entry in passwd. The error is a fault
// USER_NOT_FOUND.
func LookUpUser(name string, passwd, group []byte) (*user.ExecUser, error) {
	who, err := user.GetExecUser(name, &user.ExecUser{Home: "/"}, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		return nil, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_USER_NOT_FOUND,
			"The user %s is not in the image: choose another one by user, or give it as a number.", name).Because(err)
	}
	if !strings.HasPrefix(who.Home, "/") {
		who.Home = "/"
	}
	return who, nil
}
