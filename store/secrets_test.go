package store

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// Values of which no trace may be in a database.
const (
	canary     = "canary-5f1c0a7e"
	execCanary = "exec-canary-9b3d"
)

func secretSpec() *agboxv1.CreateSpec {
	return &agboxv1.CreateSpec{Image: "x", Envs: map[string]string{"API_KEY": canary, "A": "b"}}
}

func secretExec(id string) *agboxv1.CreateExecRequest {
	return &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: id, Command: []string{"true"}, EnvOverrides: map[string]string{"TOKEN": execCanary}}
}

// withSecrets is a store with sandbox "a" and its exec "x", which have secrets.
func withSecrets(t *testing.T) (*Store, Options) {
	t.Helper()
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	if err := s.Keys().Make("a"); err != nil {
		t.Fatal(err)
	}
	mustUpdate(t, s, func(tx *Tx) error {
		return errors.Join(tx.PutSandboxConfig("a", secretSpec()), tx.PutExecConfig("a", "x", secretExec("x")), tx.PutSandboxKey("a", "k", []byte("digest")))
	})
	return s, o
}

func wantNoCanary(t *testing.T, path string) {
	t.Helper()
	for _, value := range []string{canary, execCanary} {
		if bytes.Contains(readFile(t, path), []byte(value)) {
			t.Errorf("%s has the value %s", path, value)
		}
	}
}

func wantUnreadable(t *testing.T, err error) {
	t.Helper()
	if fault.ReasonOf(err) != agboxv1.ErrorReason_SECRETS_UNREADABLE {
		t.Errorf("error %v, want SECRETS_UNREADABLE", err)
	}
}

func TestSecretsAreEncryptedAndConfigsHaveAPlaceholder(t *testing.T) {
	s, o := withSecrets(t)
	closeStore(t, s)
	wantNoCanary(t, o.Path)
	mustView(t, mustOpen(t, o), func(tx *Tx) {
		spec, err := tx.SandboxConfig("a")
		if err != nil || spec.GetEnvs()["API_KEY"] != secrets.Placeholder || spec.GetEnvs()["A"] != "b" {
			t.Errorf("spec %v, %v", spec, err)
		}
		values, err := tx.SandboxSecrets("a")
		if err != nil || !proto.Equal(secrets.RevealSpec(spec, values), secretSpec()) {
			t.Errorf("secrets %v, %v", values, err)
		}
		request, err := tx.ExecConfig("a", "x")
		if err != nil || request.GetEnvOverrides()["TOKEN"] != secrets.Placeholder {
			t.Errorf("request %v, %v", request, err)
		}
		values, err = tx.ExecSecrets("a", "x")
		if err != nil || !proto.Equal(secrets.RevealExec(request, values), secretExec("x")) {
			t.Errorf("secrets %v, %v", values, err)
		}
		if values, err := tx.ExecSecrets("a", "y"); values != nil || err != nil {
			t.Errorf("an exec without secrets has %v, %v", values, err)
		}
	})
}

func TestARequestIsComparedWithItsSecrets(t *testing.T) {
	s, _ := withSecrets(t)
	other := secretSpec()
	other.Envs["API_KEY"] = "other"
	otherExec := secretExec("x")
	otherExec.EnvOverrides["TOKEN"] = "other"
	compare := func(want [6]bool) {
		t.Helper()
		var got [6]bool
		var errs [6]error
		mustView(t, s, func(tx *Tx) {
			got[0], errs[0] = tx.SameSandboxConfig("a", secretSpec())
			got[1], errs[1] = tx.SameSandboxConfig("a", other)
			got[2], errs[2] = tx.SameExecConfig("a", "x", secretExec("x"))
			got[3], errs[3] = tx.SameExecConfig("a", "x", otherExec)
			got[4], errs[4] = tx.SameSandboxRequest("a", []byte("digest"))
			got[5], errs[5] = tx.SameSandboxRequest("a", []byte("another"))
			if request := tx.sandboxRequest("a"); bytes.Equal(request.GetDigest(), []byte("digest")) {
				t.Error("the plain digest is stored")
			}
		})
		if got != want || errors.Join(errs[:]...) != nil {
			t.Errorf("got %v, want %v, errors %v", got, want, errs)
		}
	}
	compare([6]bool{true, false, true, false, true, false})
	if err := s.Keys().Erase("a"); err != nil {
		t.Fatal(err)
	}
	compare([6]bool{true, true, true, true, true, true}) // what is not secret, and the request key, decide
	other.Image = "another"
	mustView(t, s, func(tx *Tx) {
		if same, err := tx.SameSandboxConfig("a", other); same || err != nil {
			t.Errorf("another image: %v, %v", same, err)
		}
	})
}

func TestSecretsThatCannotBeDecryptedAreATypedErrorAndHurtNothingElse(t *testing.T) {
	swap := func(tx *Tx) error { // the record of one exec in the place of another
		return tx.put(bucketExecSecrets("a"), []byte("x"), bytes.Clone(tx.get(bucketExecSecrets("a"), []byte("y"))))
	}
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, s *Store)
		both  bool
	}{
		{"the key is missing", func(t *testing.T, s *Store) {
			if err := s.Keys().Erase("a"); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"the key is another one", func(t *testing.T, s *Store) {
			if err := errors.Join(s.Keys().Erase("a"), s.Keys().Make("a")); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"a byte of the record changed", func(t *testing.T, s *Store) {
			mustUpdate(t, s, func(tx *Tx) error {
				raw := bytes.Clone(tx.get(bucketExecSecrets("a"), []byte("x")))
				raw[len(raw)/2] ^= 1
				return tx.put(bucketExecSecrets("a"), []byte("x"), raw)
			})
		}, false},
		{"the record of another exec", func(t *testing.T, s *Store) {
			mustUpdate(t, s, func(tx *Tx) error { return tx.PutExecConfig("a", "y", secretExec("y")) })
			mustUpdate(t, s, swap)
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _ := withSecrets(t)
			c.spoil(t, s)
			mustView(t, s, func(tx *Tx) {
				_, err := tx.ExecSecrets("a", "x")
				wantUnreadable(t, err)
				if _, err := tx.SandboxSecrets("a"); c.both {
					wantUnreadable(t, err)
				} else if err != nil {
					t.Error(err)
				}
				if spec, err := tx.SandboxConfig("a"); err != nil || spec.GetImage() != "x" {
					t.Errorf("the config is %v, %v", spec, err)
				}
			})
		})
	}
}

func TestSecretsAreNotStoredWithoutAKey(t *testing.T) {
	s := newStore(t)
	err := s.Update(t.Context(), func(tx *Tx) error { return tx.PutSandboxConfig("a", secretSpec()) })
	wantUnreadable(t, err)
	mustView(t, s, func(tx *Tx) {
		if _, err := tx.SandboxConfig("a"); err == nil {
			t.Error("the config was stored")
		}
	})
}

func TestErasedSecretsHaveNoRecord(t *testing.T) {
	s, _ := withSecrets(t)
	mustUpdate(t, s, func(tx *Tx) error { return tx.PutExecConfig("a", "y", secretExec("y")) })
	mustUpdate(t, s, func(tx *Tx) error { return tx.ForgetExecs("a", "x") })
	mustView(t, s, func(tx *Tx) {
		if tx.get(bucketExecSecrets("a"), []byte("x")) != nil || tx.get(bucketExecSecrets("a"), []byte("y")) == nil {
			t.Error("a forgotten exec keeps its secrets, or another one lost them")
		}
	})
	mustUpdate(t, s, func(tx *Tx) error { return tx.EraseSecrets("a") })
	mustView(t, s, func(tx *Tx) {
		if tx.HasSecrets("a") {
			t.Error("secrets are left")
		}
	})
}

// plainFixture has schema 1 and secrets in plain text; see makePlainFixture.
const plainFixture = "testdata/schema1.db"

// plainDatabase makes a database of schema 1 from the fixture, which it first writes again
// if -remake-fixtures is set.
func plainDatabase(t *testing.T, o Options) {
	t.Helper()
	if *remake {
		makePlainFixture(t)
	}
	raw := readFile(t, plainFixture)
	if !bytes.Contains(raw, []byte(canary)) || !bytes.Contains(raw, []byte(execCanary)) {
		t.Fatal("the old database has no plain text")
	}
	writeFile(t, o.Path, raw)
}

// makePlainFixture writes a database as of schema 1: a living sandbox "a" with execs and a
// deleted one "b".
func makePlainFixture(t *testing.T) {
	_ = os.Remove(plainFixture)
	db, err := bolt.Open(plainFixture, 0o644, &bolt.Options{PageSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	put := func(tx *Tx, id string) error {
		return errors.Join(
			tx.ReserveSandbox(id, testTime),
			tx.putMessage(bucketSandboxConfig, []byte(id), secretSpec()),
			tx.putMessage(bucketExecConfig(id), []byte("x"), secretExec("x")),
			tx.put(bucketSandboxKeys, []byte("k"+id), []byte(id)),
			tx.putMessage(bucketSandboxRequests, []byte(id), &storev1.Request{Key: "k" + id, Digest: []byte("digest")}))
	}
	err = db.Update(func(b *bolt.Tx) error {
		tx := &Tx{bolt: b}
		for i := range 200 { // enough to leave free pages when they are encrypted
			id := numbered("y", i)
			if err := tx.putMessage(bucketExecConfig("a"), []byte(id), secretExec(id)); err != nil {
				return err
			}
		}
		meta := &storev1.Meta{SchemaVersion: 1, InstallId: "plain", CreatedAt: timestamppb.New(testTime)}
		return errors.Join(put(tx, "a"), put(tx, "b"), tx.MarkDeleted("b", testTime), putMeta(b, meta))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

func wantMigrated(t *testing.T, s *Store) {
	t.Helper()
	mustView(t, s, func(tx *Tx) {
		for _, id := range []string{"a", "b"} {
			spec, err := tx.SandboxConfig(id)
			if err != nil || spec.GetEnvs()["API_KEY"] != secrets.Placeholder || spec.GetEnvs()["A"] != "b" {
				t.Errorf("spec %v, %v", spec, err)
			}
			if same, err := tx.SameSandboxRequest(id, []byte("digest")); !same || err != nil {
				t.Errorf("request of %s: same %v, %v", id, same, err)
			}
		}
		if same, err := tx.SameSandboxConfig("a", secretSpec()); !same || err != nil {
			t.Errorf("same spec %v, %v", same, err)
		}
		shown := secretExec("x")
		shown.ShowSecrets = true
		if same, err := tx.SameExecConfig("a", "x", shown); !same || err != nil {
			t.Errorf("with its output shown otherwise: %t, %v", same, err)
		}
		if same, err := tx.SameExecConfig("a", "x", secretExec("x")); !same || err != nil {
			t.Errorf("same exec %v, %v", same, err)
		}
		if tx.HasSecrets("b") {
			t.Error("a deleted sandbox has secrets")
		}
	})
	if _, err := s.Keys().Get("b"); !errors.Is(err, secrets.ErrNoKey) {
		t.Errorf("a deleted sandbox has a key: %v", err)
	}
}

func TestAnOldDatabaseIsEncryptedAndWrittenAnew(t *testing.T) {
	o := testOptions(t.TempDir())
	plainDatabase(t, o)
	s := mustOpen(t, o)
	wantMigrated(t, s)
	wantNoCanary(t, o.Path)
	mustUpdate(t, s, reserve("later"))
	closeStore(t, s)
	again := mustOpen(t, o)
	wantMigrated(t, again)
	if again.InstallID() != s.InstallID() || again.Meta().GetRewrite() {
		t.Errorf("meta %v", again.Meta())
	}
	mustView(t, again, func(tx *Tx) {
		if _, reserved := tx.SandboxReserved("later"); !reserved {
			t.Error("what was written after the rewriting is lost")
		}
	})
	wantNoCanary(t, o.Path)
}

func TestFreePagesOfAnOldDatabaseAreLeftBehind(t *testing.T) {
	o := testOptions(t.TempDir())
	plainDatabase(t, o)
	db, err := bolt.Open(o.Path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(b *bolt.Tx) error {
		tx := &Tx{bolt: b}
		return errors.Join(tx.DropSandbox("a"), tx.DropSandbox("b"))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(readFile(t, o.Path), []byte(execCanary)) {
		t.Fatal("no free page has the value")
	}
	mustView(t, mustOpen(t, o), func(tx *Tx) {
		if _, reserved := tx.SandboxReserved("a"); !reserved {
			t.Error("the id is free")
		}
	})
	wantNoCanary(t, o.Path)
}

func TestAnOldDatabaseThatCannotBeWrittenAnewIsServedAndTriedAgain(t *testing.T) {
	o := testOptions(t.TempDir())
	plainDatabase(t, o)
	// A directory that is not empty cannot be replaced by the copy.
	block := filepath.Join(o.Path+newSuffix, "x")
	if err := os.MkdirAll(block, 0o700); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, o)
	wantMigrated(t, s)
	mustUpdate(t, s, reserve("later"))
	closeStore(t, s)
	if !bytes.Contains(readFile(t, o.Path), []byte(execCanary)) {
		t.Fatal("the test has nothing to show: no plain text is left")
	}
	if err := os.RemoveAll(o.Path + newSuffix); err != nil {
		t.Fatal(err)
	}
	again := mustOpen(t, o)
	wantMigrated(t, again)
	wantNoCanary(t, o.Path)
	mustView(t, again, func(tx *Tx) {
		if _, reserved := tx.SandboxReserved("later"); !reserved {
			t.Error("an update is lost")
		}
	})
}

// TestACrashWhileAnOldDatabaseIsWrittenAnewLosesNothing ends the rewriting after each of its steps.
func TestACrashWhileAnOldDatabaseIsWrittenAnewLosesNothing(t *testing.T) {
	for stop := range len(publishSteps("x", nil)) + 1 {
		o := testOptions(t.TempDir())
		plainDatabase(t, o)
		o.Logger = slog.New(slog.DiscardHandler)
		seen := stat(t, o.Path)
		db, err := openSeen(o, seen)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := migrate(db, keysOf(o.Path), migrations, testTime); err != nil {
			t.Fatal(err)
		}
		steps := publishSteps(o.Path, func(temp string) error { return copyPages(o, db, temp) })
		if err := errors.Join(runSteps(steps[:stop]), db.Close()); err != nil {
			t.Fatal(err)
		}
		wantMigrated(t, mustOpen(t, o))
		wantNoCanary(t, o.Path)
		if _, err := os.Stat(o.Path + newSuffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a copy is left after a crash behind step %d: %v", stop, err)
		}
	}
}
