package reconcile

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

func withSecrets() *agboxv1.CreateSpec {
	return &agboxv1.CreateSpec{
		Envs:     map[string]string{"API_KEY": "canary"},
		Services: []*agboxv1.ServiceSpec{{Name: "db", Image: runtimetest.FakeImage, Envs: map[string]string{"DB_PASSWORD": "canary"}}},
	}
}

func TestContainersGetTheValuesOfSecretVariables(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createSpec("a", withSecrets())
	l.await("a", machine.Ready)
	for name, want := range map[string]string{runtime.PrimaryName("a"): "API_KEY=canary", runtime.ServiceName("a", "db"): "DB_PASSWORD=canary"} {
		l.until(want, func() bool {
			spec, made := l.engine.Spec(name)
			return made && slices.Contains(spec.Env, want)
		})
	}
	boot, err := os.ReadFile(l.loop.paths.GuestBoot("a"))
	if err != nil || bytes.Contains(boot, []byte("canary")) {
		t.Errorf("the boot configuration has a secret, or %v", err)
	}
}

func TestWithoutItsKeyASandboxLivesOnAndStartsAgain(t *testing.T) {
	t.Parallel()
	l := begin(t, runtimetest.NewFake(), t.TempDir())
	l.createSpec("a", withSecrets())
	l.await("a", machine.Ready)
	if err := os.RemoveAll(filepath.Join(l.dir, "secret-keys")); err != nil {
		t.Fatal(err)
	}
	n := l.next()
	n.await("a", machine.Ready)
	n.stop("a")
	n.await("a", machine.Stopped)
	n.want(n.ledger.RequestResume, "a")
	n.await("a", machine.Ready) // the container has its variables
	n.want(n.ledger.RequestDelete, "a")
	n.await("a", machine.Deleted)
	n.nothingLeft()
}

func TestWithoutItsKeyASandboxCannotBeMadeAndSaysSo(t *testing.T) {
	t.Parallel()
	l := beginWith(t, runtimetest.NewFake(), t.TempDir(), time.Hour) // no look before Enqueue
	spec := withSecrets()
	spec.Image = runtimetest.FakeImage
	if _, err := l.ledger.Create(t.Context(), "a", spec); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(l.dir, "secret-keys")); err != nil {
		t.Fatal(err)
	}
	l.loop.Enqueue("a")
	if r := l.await("a", machine.Failed); r.ErrorReason != agboxv1.ErrorReason_SECRETS_UNREADABLE.String() {
		t.Errorf("it failed with %s: %s", r.ErrorReason, r.ErrorMessage)
	}
}
