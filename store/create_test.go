package store

import (
	"os"
	"strings"
	"testing"

	"github.com/agbox/agbox/internal/fault"
)

func TestANewInstallGetsDatabaseAndSentinelWithOneID(t *testing.T) {
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	if got := strings.TrimSpace(string(readFile(t, o.Sentinel))); got != s.InstallID() || got == "" {
		t.Fatalf("sentinel %q, database %q", got, s.InstallID())
	}
	meta := s.Meta()
	if meta.GetSchemaVersion() != SchemaVersion || !meta.GetCreatedAt().AsTime().Equal(testTime) {
		t.Fatalf("meta %v", meta)
	}
	mustView(t, s, func(tx *Tx) {
		if m, err := tx.Meta(); err != nil || m.GetInstallId() != s.InstallID() {
			t.Fatalf("meta in the database: %v, %v", m, err)
		}
	})
	closeStore(t, s)
	if again := mustOpen(t, o); again.InstallID() != meta.GetInstallId() {
		t.Fatalf("install id %q became %q", meta.GetInstallId(), again.InstallID())
	}
}

// afterCrash runs only the first steps of a creation.
func afterCrash(t *testing.T, o Options, steps int) {
	t.Helper()
	if err := runSteps(createSteps(o.Path, o.Sentinel, "firstone", testTime)[:steps]); err != nil {
		t.Fatal(err)
	}
}

func TestACrashAnywhereInCreationLeadsToACleanRetry(t *testing.T) {
	total := len(createSteps("", "", "", testTime))
	for done := range total + 1 {
		t.Run(numbered("steps", done), func(t *testing.T) {
			o := testOptions(t.TempDir())
			afterCrash(t, o, done)
			visible, err := exists(o.Path)
			if err != nil {
				t.Fatal(err)
			}
			s := mustOpen(t, o)
			if visible != (s.InstallID() == "firstone") {
				t.Fatalf("database visible: %v, install id %q", visible, s.InstallID())
			}
			if got := strings.TrimSpace(string(readFile(t, o.Sentinel))); got != s.InstallID() {
				t.Fatalf("sentinel %q, database %q", got, s.InstallID())
			}
			mustUpdate(t, s, reserve("a"))
			closeStore(t, s)
			if again := mustOpen(t, o); !isReserved(t, again, "a") {
				t.Fatal("the reservation is gone")
			}
		})
	}
}

func TestACrashInTheMiddleOfAFileLeadsToACleanRetry(t *testing.T) {
	for name, path := range map[string]func(o Options) string{
		"database": func(o Options) string { return o.Path },
		"sentinel": func(o Options) string { return o.Sentinel },
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions(t.TempDir())
			if name == "sentinel" {
				afterCrash(t, o, 4)
			}
			writeFile(t, path(o)+newSuffix, []byte("torn"))
			s := mustOpen(t, o)
			if _, err := os.Stat(path(o) + newSuffix); err == nil {
				t.Fatal("the torn file is still there")
			}
			mustUpdate(t, s, reserve("a"))
		})
	}
}

func TestALostDatabaseIsNeverTakenForNew(t *testing.T) {
	o := testOptions(t.TempDir())
	s := mustOpen(t, o)
	mustUpdate(t, s, reserve("a"))
	closeStore(t, s)
	if err := os.Remove(o.Path); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the first refusal must not leave a file that makes the second Open succeed
		_, err := Open(t.Context(), o)
		wantFault(t, err, ErrLost)
		if got := fault.Of(err).Metadata["install_id"]; got != s.InstallID() {
			t.Fatalf("install id %q, want %q", got, s.InstallID())
		}
	}
	o.AdoptLost = true
	adopted := mustOpen(t, o)
	if adopted.InstallID() != s.InstallID() || isReserved(t, adopted, "a") {
		t.Fatalf("adopted as %q, want %q and empty", adopted.InstallID(), s.InstallID())
	}
}

func TestASentinelOfAnotherInstallIsRefused(t *testing.T) {
	o := testOptions(t.TempDir())
	closeStore(t, mustOpen(t, o))
	before := readFile(t, o.Path)
	for _, text := range []string{"another1\n", ""} {
		writeFile(t, o.Sentinel, []byte(text))
		_, err := Open(t.Context(), o)
		wantFault(t, err, ErrInstallMismatch)
	}
	if string(readFile(t, o.Path)) != string(before) {
		t.Fatal("the database was changed")
	}
	if err := os.Remove(o.Sentinel); err != nil {
		t.Fatal(err)
	}
	mustOpen(t, o)
}
