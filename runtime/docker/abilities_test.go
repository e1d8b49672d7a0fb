package docker

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/system"
	"github.com/moby/profiles/seccomp"

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

func TestOurProfileAllowsNoWayAroundItself(t *testing.T) {
	text, err := profile()
	if err != nil {
		t.Fatal(err)
	}
	var p seccomp.Seccomp
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	allowed := 0
	for _, rule := range p.Syscalls {
		allowed += len(rule.Names)
		for _, name := range []string{"io_uring_setup", "io_uring_enter", "io_uring_register", "socketcall"} {
			if slices.Contains(rule.Names, name) {
				t.Errorf("%s is %s", name, rule.Action)
			}
		}
		if slices.Contains(rule.Names, "socket") && len(rule.Args) == 0 {
			t.Error("sockets of every family are allowed")
		}
	}
	if p.DefaultAction != "SCMP_ACT_ERRNO" || allowed < 300 {
		t.Errorf("the default is %s, and %d calls have rules", p.DefaultAction, allowed)
	}
}

func TestOnlyTheBuiltinProfileIsReplaced(t *testing.T) {
	for option, want := range map[string]bool{
		"name=seccomp,profile=default":                 true,
		"name=seccomp,profile=builtin":                 true,
		"name=seccomp,profile=unconfined":              false,
		"name=seccomp,profile=/etc/docker/strict.json": false,
		"name=apparmor":                                false,
		"name=selinux,profile=default":                 false,
	} {
		if builtinSeccomp(option) != want {
			t.Errorf("%s: our profile is used: %v", option, !want)
		}
	}
}
