package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// childRole is the environment variable that turns this test binary, started
// again, into one of the child processes that the tests need.
const childRole = "AGBOX_STORE_TEST_CHILD"

var children = map[string]func(args []string) int{
	"check":    func(args []string) int { return CheckMain(args[0]) },
	"crash":    crashingCheck,
	"hang":     hangingCheck,
	"stranger": func([]string) int { return exitDamaged },
	"write":    writeUntilKilled,
	"fill":     fillUnderLimit,
	"nosync":   writeWithoutSync,
	"unsynced": readsAfterTheLastSync,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		os.Exit(children[role](os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

func child(role string, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), childRole+"="+role, "GORACE=atexit_sleep_ms=0")
	return cmd
}

var testTime = time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)

func testOptions(dir string) Options {
	return Options{
		Path:         filepath.Join(dir, "ids.db"),
		Sentinel:     filepath.Join(dir, "install-id"),
		CheckCommand: func(path string) *exec.Cmd { return child("check", path) },
		LockTimeout:  100 * time.Millisecond,
		Now:          func() time.Time { return testTime },
	}
}

func mustOpen(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { closeStore(t, s) })
	return s
}

func closeStore(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func newStore(t testing.TB) *Store {
	t.Helper()
	return mustOpen(t, testOptions(t.TempDir()))
}

func mustUpdate(t testing.TB, s *Store, fn func(tx *Tx) error) {
	t.Helper()
	if err := s.Update(context.WithoutCancel(t.Context()), fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

func mustView(t testing.TB, s *Store, fn func(tx *Tx)) {
	t.Helper()
	err := s.View(context.WithoutCancel(t.Context()), func(tx *Tx) error {
		fn(tx)
		return nil
	})
	if err != nil {
		t.Fatalf("View: %v", err)
	}
}

func event(sandboxID string, kind agboxv1.EventType) *agboxv1.SandboxEvent {
	return &agboxv1.SandboxEvent{SandboxId: sandboxID, EventType: kind}
}

func execEvent(sandboxID, execID string, kind agboxv1.EventType) *agboxv1.SandboxEvent {
	ev := event(sandboxID, kind)
	ev.Details = &agboxv1.SandboxEvent_Exec{Exec: &agboxv1.ExecEventDetails{ExecId: execID}}
	return ev
}

func appendEvents(evs ...*agboxv1.SandboxEvent) func(tx *Tx) error {
	return func(tx *Tx) error {
		for _, ev := range evs {
			if err := tx.AppendEvent(ev); err != nil {
				return err
			}
		}
		return nil
	}
}

// wantFault requires that errors.Is finds want in err, and that err has a
// message for people and a reason for programs.
func wantFault(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
	f := fault.Of(err)
	if f == nil || f.Message == "" || f.Reason == agboxv1.ErrorReason_ERROR_REASON_UNSPECIFIED || f.Class == nil {
		t.Fatalf("incomplete fault: %#v", err)
	}
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func writeFile(t testing.TB, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func numbered(prefix string, i int) string { return fmt.Sprintf("%s%05d", prefix, i) }
