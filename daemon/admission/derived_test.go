package admission

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/policy"
)

// TestADerivedSandboxIsAdmittedByThePresentRules: a program has put a link into the path of a
// mount, and the operator has a policy by now.
func TestADerivedSandboxIsAdmittedByThePresentRules(t *testing.T) {
	root := t.TempDir()
	mounted := filepath.Join(root, "project", "data")
	other := filepath.Join(root, "other")
	for _, dir := range []string{mounted, filepath.Join(other, "data")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	derived := &agboxv1.CreateSpec{
		Image: "x", SourcesResolved: true, Derived: &agboxv1.DerivedSpec{Parent: "x"},
		Mounts: []*agboxv1.MountSpec{{Source: mounted, Target: "/data"}}, Security: &agboxv1.SecuritySpec{AllowHost: proto.Bool(true)},
	}
	c := &Controller{log: slog.New(slog.DiscardHandler), host: hostfiles.Checker{Host: spec.Host{Home: root}}}
	if err := c.Derived(derived); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(root, "project"), filepath.Join(root, "was")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(root, "project")); err != nil {
		t.Fatal(err)
	}
	if err := c.Derived(derived); err == nil || !strings.Contains(err.Error(), "mounts[0].source") || strings.Contains(err.Error(), root) {
		t.Errorf("through a link, of which the program may not learn: %v", err)
	}
	bound := policy.None()
	bound.HostAccess = false
	c = &Controller{host: hostfiles.Checker{Policy: bound}}
	if err := c.Derived(&agboxv1.CreateSpec{Security: derived.GetSecurity()}); err == nil || !strings.Contains(err.Error(), "security.allow_host") {
		t.Errorf("what the operator forbids by now: %v", err)
	}
}
