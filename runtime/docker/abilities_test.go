package docker

import (
	"testing"

	"github.com/docker/docker/api/types/system"
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
