package docker

import (
	"errors"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/system"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestRootInUserNamespacesIsKnown(t *testing.T) {
	for _, c := range []struct {
		options  []string
		dir      string
		uid, gid int
	}{
		{[]string{"name=seccomp,profile=default", "name=userns"}, "/var/lib/docker/165536.231072", 165536, 231072},
		{[]string{"name=userns"}, "/var/lib/docker", 0, 0},
		{[]string{"name=seccomp,profile=default"}, "/srv/1000.1000", 0, 0},
		{nil, "", 0, 0},
	} {
		uid, gid := remappedRoot(system.Info{SecurityOptions: c.options, DockerRootDir: c.dir})
		if uid != c.uid || gid != c.gid {
			t.Errorf("%v and %q give %d and %d, want %d and %d", c.options, c.dir, uid, gid, c.uid, c.gid)
		}
	}
}

func TestAMountThatRootInAUserNamespaceMayNotMakeIsNamed(t *testing.T) {
	for _, said := range []string{
		`OCI runtime create failed: runc create failed: error mounting "/home/a/p/agbox.yaml" to rootfs at "/w/agbox.yaml": lstat /merged/w/agbox.yaml: permission denied: unknown.`,
		`error mounting \"/home/a/p/agbox.yaml\" to rootfs at \"/w/agbox.yaml\": lstat /merged/w/agbox.yaml: permission denied: unknown.`,
	} {
		if !deniedMount.MatchString(said) {
			t.Errorf("%s is not found", said)
			continue
		}
		err := mountFault(errors.New(said))
		if fault.ReasonOf(err) != agboxv1.ErrorReason_HOST_PATH_UNUSABLE || !strings.HasPrefix(err.Error(), "Docker may not mount /home/a/p/agbox.yaml in the container") {
			t.Errorf("%s gives %v", said, err)
		}
	}
	if deniedMount.MatchString(`error mounting "/x" to rootfs at "/y": no such file or directory`) {
		t.Error("another error is taken for it")
	}
}
