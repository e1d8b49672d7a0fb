package ledger

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/secrets"
	"github.com/agbox/agbox/store"
)

func secretSpec() *agboxv1.CreateSpec {
	return &agboxv1.CreateSpec{Image: "img", Envs: map[string]string{"API_KEY": "canary"}}
}

func secretRequest(id string) *agboxv1.CreateExecRequest {
	req := request(id)
	req.EnvOverrides, req.RequestKey = map[string]string{"TOKEN": "canary"}, "k"+id
	return req
}

func createSecret(t *testing.T, l *Ledger, id string) Sandbox {
	t.Helper()
	sb, err := l.CreateKeyed(t.Context(), id, secretSpec(), RequestKey{Key: "key of " + id, Digest: []byte("d")})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// finish ends an exec of sandbox "a".
func finish(t *testing.T, l *Ledger, id string) {
	t.Helper()
	err := l.EndExec(t.Context(), "a", &agboxv1.ExecEventDetails{ExecId: id, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOnlyRevealGivesTheValuesOfSecretVariables(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	createSecret(t, l, "a")
	emit(t, l, "a", agboxv1.EventType_SANDBOX_READY)
	if _, err := l.AcceptExec(t.Context(), secretRequest("x"), "boot"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		sb, _ := l.Sandbox("a")
		revealed, err := l.Reveal(t.Context(), sb)
		if err != nil || !proto.Equal(revealed.Spec, secretSpec()) || sb.Spec.GetEnvs()["API_KEY"] != secrets.Placeholder {
			t.Errorf("the record has %v, revealed is %v, %v", sb.Spec, revealed.Spec, err)
		}
		status, err := l.Exec(t.Context(), "a", "x")
		if err != nil || status.GetEnvOverrides()["TOKEN"] != secrets.Placeholder {
			t.Errorf("the exec shows %v, %v", status.GetEnvOverrides(), err)
		}
		if req, err := l.RevealedExec(t.Context(), "a", "x"); err != nil || !proto.Equal(req, secretRequest("x")) {
			t.Errorf("revealed is %v, %v", req, err)
		}
		closeDB()
		l, closeDB = open(t, dir)
	}
}

func TestRequestsWithSecretsAreRepeatable(t *testing.T) {
	l := fresh(t)
	createSecret(t, l, "a")
	key := RequestKey{Key: "key of a", Digest: []byte("d")}
	if _, again, err := l.RepeatedCreate(t.Context(), "a", key); !again || err != nil {
		t.Errorf("again %v, %v", again, err)
	}
	recoded := RequestKey{Key: "key of a", Digest: []byte("other")}
	if _, again, err := l.RepeatedCreate(t.Context(), "a", recoded); again || err != nil {
		t.Errorf("another digest: again %v, %v", again, err)
	}
	if _, err := l.CreateKeyed(t.Context(), "a", secretSpec(), recoded); err != nil {
		t.Errorf("the same spec: %v", err)
	}
	other := secretSpec()
	other.Envs["API_KEY"] = "other"
	_, err := l.CreateKeyed(t.Context(), "a", other, recoded)
	wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)

	emit(t, l, "a", agboxv1.EventType_SANDBOX_READY)
	for want := range 2 {
		again, err := l.AcceptExec(t.Context(), secretRequest("x"), "boot")
		if err != nil || again != (want == 1) {
			t.Errorf("again %v, %v", again, err)
		}
	}
	changed := secretRequest("x")
	changed.EnvOverrides["TOKEN"] = "other"
	if known, err := l.RepeatedExec(t.Context(), changed); known || err != nil {
		t.Errorf("another token: known %v, %v", known, err)
	}
	_, err = l.AcceptExec(t.Context(), changed, "boot")
	wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)

	finish(t, l, "x")
	gone(t, l, "a")
	if sb, again, err := l.RepeatedCreate(t.Context(), "a", key); err != nil || !again || !sb.Over() {
		t.Errorf("after the deletion: %+v, again %v, %v", sb.Record, again, err)
	}
}

func TestADeletedSandboxHasNeitherSecretsNorKey(t *testing.T) {
	l := fresh(t)
	createSecret(t, l, "a")
	emit(t, l, "a", agboxv1.EventType_SANDBOX_READY)
	if _, err := l.AcceptExec(t.Context(), secretRequest("x"), "boot"); err != nil {
		t.Fatal(err)
	}
	finish(t, l, "x")
	if _, err := l.RequestDelete(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.store.Keys().Get("a"); err != nil {
		t.Errorf("the key went before the deletion: %v", err)
	}
	emit(t, l, "a", agboxv1.EventType_SANDBOX_ENDED) // agbox rm returns
	if _, err := l.store.Keys().Get("a"); !errors.Is(err, secrets.ErrNoKey) {
		t.Errorf("the key is still there: %v", err)
	}
	if left, err := look(t.Context(), l, func(tx *store.Tx) bool { return tx.HasSecrets("a") }); err != nil || left {
		t.Errorf("encrypted values are left: %v, %v", left, err)
	}
	emit(t, l, "a", agboxv1.EventType_SANDBOX_DELETED)
	past, err := l.Past(t.Context(), "a")
	if err != nil || past.Spec.GetEnvs()["API_KEY"] != secrets.Placeholder {
		t.Errorf("the record is %v, %v", past.Spec, err)
	}
	if revealed, err := l.Reveal(t.Context(), past); err != nil || !proto.Equal(revealed.Spec, past.Spec) {
		t.Errorf("secrets are left: %v, %v", revealed.Spec, err)
	}
	if _, err := l.AcceptExec(t.Context(), secretRequest("y"), "boot"); err == nil {
		t.Error("a deleted sandbox took an exec")
	}
	if _, err := l.store.Keys().Get("a"); !errors.Is(err, secrets.ErrNoKey) {
		t.Errorf("a refused exec made a key: %v", err)
	}
}

func TestALostKeyLosesNoSandboxAndIsNotReplaced(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	createSecret(t, l, "a")
	emit(t, l, "a", agboxv1.EventType_SANDBOX_READY)
	if err := l.store.Keys().Erase("a"); err != nil {
		t.Fatal(err)
	}
	closeDB()
	l, _ = open(t, dir)
	sb, living := l.Sandbox("a")
	if !living || len(l.Unreadable()) > 0 {
		t.Fatalf("living %v, unreadable %v", living, l.Unreadable())
	}
	_, err := l.Reveal(t.Context(), sb)
	wantReason(t, err, agboxv1.ErrorReason_SECRETS_UNREADABLE)
	_, err = l.AcceptExec(t.Context(), secretRequest("x"), "boot")
	wantReason(t, err, agboxv1.ErrorReason_SECRETS_UNREADABLE)
	if _, err := l.AcceptExec(t.Context(), request("y"), "boot"); err != nil {
		t.Errorf("an exec without secrets: %v", err)
	}
	finish(t, l, "y")
	gone(t, l, "a")
}

func TestADamagedKeyDoesNotPreventAnAdoption(t *testing.T) {
	dir := t.TempDir()
	l, _ := open(t, dir)
	for _, id := range []string{"a", "b"} {
		if err := l.store.Keys().Make(id); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, "secret-keys", "a")
	if err := os.Truncate(path, 3); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		sb, err := l.Adopt(t.Context(), Adopted{ID: id, Nonce: "n", Spec: secretSpec(), Running: true})
		if err != nil {
			t.Fatal(err)
		}
		if revealed, err := l.Reveal(t.Context(), sb); err != nil || !proto.Equal(revealed.Spec, secretSpec()) || sb.Spec.GetEnvs()["API_KEY"] != secrets.Placeholder {
			t.Errorf("the record has %v, revealed is %v, %v", sb.Spec, revealed.Spec, err)
		}
	}
}

func TestKeysOfRefusedCreationsAreSwept(t *testing.T) {
	l := fresh(t)
	createSecret(t, l, "a")
	if err := l.store.Keys().Make("b"); err != nil {
		t.Fatal(err)
	}
	if err := l.SweepKeys(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.store.Keys().Get("b"); err != nil {
		t.Errorf("the key of a creation in progress: %v", err)
	}
	l.now = func() time.Time { return time.Now().Add(time.Hour) }
	if err := l.SweepKeys(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.store.Keys().Get("b"); !errors.Is(err, secrets.ErrNoKey) {
		t.Errorf("the key without a sandbox: %v", err)
	}
	if _, err := l.store.Keys().Get("a"); err != nil {
		t.Errorf("the key of a sandbox: %v", err)
	}
}

// TestAnErrorOfTheDatabaseErasesNoKey: after a failed sync to the disk, a sandbox may be stored
// whose creation has failed. A refusal erases the key at once.
func TestAnErrorOfTheDatabaseErasesNoKey(t *testing.T) {
	l := fresh(t)
	own := &agboxv1.CreateSpec{Image: "img", Envs: map[string]string{"API_TOKEN": "x"}, Derived: &agboxv1.DerivedSpec{Parent: "p", Tree: "p"}}
	has := func(id string) bool {
		t.Helper()
		_, err := l.store.Keys().Get(id)
		if err != nil && !errors.Is(err, secrets.ErrNoKey) {
			t.Fatal(err)
		}
		return err == nil
	}
	for _, row := range []struct {
		class error
		left  bool
	}{{errdefs.ErrUnavailable, true}, {errdefs.ErrResourceExhausted, false}} {
		n := NewAgent{ID: "c", SandboxID: "agent-c", Own: own}
		if _, err := l.hide(t.Context(), n.SandboxID, n.Own); err != nil {
			t.Fatal(err)
		}
		if err := l.unmake(n, fault.New(row.class, agboxv1.ErrorReason_STORE_FAILED, "No.")); err != nil || has(n.SandboxID) != row.left {
			t.Errorf("%v: %v, there is a key: %v", row.class, err, has(n.SandboxID))
		}
	}
}

// TestTheKeyOfWhatIsStoredIsNotSwept, also if the records do not have that sandbox: its creation
// was answered with an error, and has reached the disk.
func TestTheKeyOfWhatIsStoredIsNotSwept(t *testing.T) {
	l := fresh(t)
	for _, id := range []string{"stored", "refused"} {
		spec := &agboxv1.CreateSpec{Image: "img", Envs: map[string]string{"API_TOKEN": "x"}}
		if _, err := l.hide(t.Context(), id, spec); err != nil {
			t.Fatal(err)
		}
		if id == "stored" {
			if err := l.store.Update(t.Context(), func(tx *store.Tx) error { return tx.PutSandboxConfig(id, spec) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.now = func() time.Time { return time.Now().Add(2 * unusedKeyAge) }
	if err := l.SweepKeys(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.store.Keys().Get("stored"); err != nil {
		t.Errorf("of what is stored: %v", err)
	}
	if _, err := l.store.Keys().Get("refused"); !errors.Is(err, secrets.ErrNoKey) {
		t.Errorf("of what is not: %v", err)
	}
}
