package docker

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
)

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
