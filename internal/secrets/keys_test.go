package secrets

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// made returns keys with one for sandbox "a".
func made(t *testing.T) Keys {
	t.Helper()
	k := NewKeys(filepath.Join(t.TempDir(), "keys"))
	if err := k.Make("a"); err != nil {
		t.Fatal(err)
	}
	return k
}

func keyOf(t *testing.T, k Keys, id string) *Key {
	t.Helper()
	key, err := k.Get(id)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestWhatAKeySealsOnlyItOpensAndOnlyAboutTheSame(t *testing.T) {
	k := made(t)
	if err := k.Make("b"); err != nil {
		t.Fatal(err)
	}
	key := keyOf(t, k, "a")
	sealed := key.Seal([]byte("canary"), "sandbox a")
	if bytes.Contains(sealed, []byte("canary")) || bytes.Equal(sealed, key.Seal([]byte("canary"), "sandbox a")) {
		t.Errorf("sealed to %q", sealed)
	}
	if plain, err := keyOf(t, k, "a").Open(sealed, "sandbox a"); err != nil || string(plain) != "canary" {
		t.Errorf("opened to %q, %v", plain, err)
	}
	if _, err := key.Open(sealed, "sandbox b"); err == nil {
		t.Error("a record was taken for another one")
	}
	if _, err := keyOf(t, k, "b").Open(sealed, "sandbox a"); err == nil {
		t.Error("the key of another sandbox opened it")
	}
	for i := range sealed {
		broken := slices.Clone(sealed)
		broken[i] ^= 1
		if _, err := key.Open(broken, "sandbox a"); err == nil {
			t.Errorf("byte %d was changed unnoticed", i)
		}
		if _, err := key.Open(sealed[:i], "sandbox a"); err == nil {
			t.Errorf("the first %d bytes were enough", i)
		}
	}
	sum := key.Sum([]byte("x"))
	if !bytes.Equal(sum, keyOf(t, k, "a").Sum([]byte("x"))) || bytes.Equal(sum, keyOf(t, k, "b").Sum([]byte("x"))) || bytes.Equal(sum, key.Sum([]byte("y"))) {
		t.Error("the digest does not follow from key and data")
	}
}

func TestAKeyFileIsForItsUserOnlyAndStays(t *testing.T) {
	k := made(t)
	path := filepath.Join(k.dir, "a")
	before, err := os.ReadFile(path)
	if err != nil || len(before) != keySize {
		t.Fatalf("%d bytes, %v", len(before), err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("the file is %v, %v", info.Mode(), err)
	}
	if info, err := os.Stat(k.dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v", info.Mode(), err)
	}
	if err := k.Make("a"); err != nil {
		t.Fatal(err)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the second Make changed the key: %v", err)
	}
	if entries, err := os.ReadDir(k.dir); err != nil || len(entries) != 1 {
		t.Errorf("the directory has %v, %v", entries, err)
	}
}

func TestManyWhoMakeAKeyGetTheSame(t *testing.T) {
	k := NewKeys(filepath.Join(t.TempDir(), "keys"))
	sums := make([][]byte, 16)
	var all sync.WaitGroup
	for i := range sums {
		all.Go(func() {
			if err := k.Make("a"); err != nil {
				t.Error(err)
				return
			}
			if key, err := k.Get("a"); err == nil {
				sums[i] = key.Sum(nil)
			}
		})
	}
	all.Wait()
	for _, sum := range sums {
		if sum == nil || !bytes.Equal(sum, sums[0]) {
			t.Fatal("two callers got different keys")
		}
	}
}

func TestAKeyThatIsMissingOrNotOursIsATypedError(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(path string) error
		noKey bool
	}{
		{"missing", os.Remove, true},
		{"readable for others", func(path string) error { return os.Chmod(path, 0o640) }, false},
		{"cut short", func(path string) error { return os.Truncate(path, 5) }, false},
		{"too long", func(path string) error { return os.Truncate(path, 33) }, false},
		{"a link", func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		}, false},
		{"a FIFO", func(path string) error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) }, false},
		{"a directory", func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := made(t)
			if err := c.spoil(filepath.Join(k.dir, "a")); err != nil {
				t.Fatal(err)
			}
			_, err := k.Get("a")
			if fault.ReasonOf(err) != agboxv1.ErrorReason_SECRETS_UNREADABLE || errors.Is(err, ErrNoKey) != c.noKey {
				t.Errorf("error %v", err)
			}
			if err := k.Make("a"); c.noKey != (err == nil) {
				t.Errorf("making it anew: %v", err)
			}
		})
	}
}

func TestAKeyOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("only root can give a file away")
		return
	}
	k := made(t)
	if err := os.Chown(filepath.Join(k.dir, "a"), 1, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Get("a"); fault.ReasonOf(err) != agboxv1.ErrorReason_SECRETS_UNREADABLE {
		t.Errorf("error %v", err)
	}
}

func TestAnErasedKeyIsGoneAlsoFromAFileThatIsStillOpen(t *testing.T) {
	k := made(t)
	f, err := os.Open(filepath.Join(k.dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for range 2 {
		if err := k.Erase("a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := k.Get("a"); !errors.Is(err, ErrNoKey) {
		t.Errorf("error %v", err)
	}
	raw := make([]byte, keySize)
	if _, err := f.ReadAt(raw, 0); err != nil || !bytes.Equal(raw, make([]byte, keySize)) {
		t.Errorf("the file still has %x, %v", raw, err)
	}
}

// TestAKeyIsMadeWhileAnotherErasesIt: a pool is set as it is while somebody replaces it.
func TestAKeyIsMadeWhileAnotherErasesIt(t *testing.T) {
	k := made(t)
	var all errgroup.Group
	for _, does := range []func(string) error{k.Make, k.Make, k.Make, k.Make, k.Erase} {
		all.Go(func() error {
			for range 500 {
				if err := does("a"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

func TestIDsLeadToNoOtherFile(t *testing.T) {
	k := made(t)
	for _, id := range []string{"", ".", "..", "../a", "a/b", ".new-1"} {
		if err := k.Make(id); err == nil {
			t.Errorf("%q got a key", id)
		}
		if _, err := k.Get(id); !errors.Is(err, ErrNoKey) {
			t.Errorf("%q: %v", id, err)
		}
		if err := k.Erase(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
}

func TestSweepingKeepsWhatIsNeededOrNew(t *testing.T) {
	k := made(t)
	old := time.Now().Add(-time.Hour)
	write := func(name string) string {
		path := filepath.Join(k.dir, name)
		if err := os.WriteFile(path, make([]byte, keySize), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, name := range []string{"needed", "unused", tempPrefix + "1", "README for people"} {
		if err := os.Chtimes(write(name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	write("young")
	if err := k.Sweep(time.Now().Add(-time.Minute), func(id string) bool { return id == "needed" }); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"README for people", "a", "needed", "young"}; !slices.Equal(left, want) {
		t.Errorf("left %q, want %q", left, want)
	}
	if err := NewKeys(filepath.Join(t.TempDir(), "none")).Sweep(time.Now(), nil); err != nil {
		t.Error(err)
	}
}

// TestASweepLooksOnlyAtKeysThatMayNotBeNeeded counts those that it asks about.
func TestASweepLooksOnlyAtKeysThatMayNotBeNeeded(t *testing.T) {
	k := NewKeys(t.TempDir())
	for i := range 100 {
		if err := k.Make(fmt.Sprint("needed-", i)); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct {
		make  string
		after time.Duration
		asked int
	}{{"", 0, 100}, {"", 0, 0}, {"refused", 0, 1}, {"needed-3", 0, 2}, {"", time.Hour, 1}, {"", time.Hour, 0}, {"refused", time.Hour, 1}} {
		if step.make != "" {
			if err := k.Make(step.make); err != nil {
				t.Fatal(err)
			}
		}
		asked := 0
		err := k.Sweep(time.Now().Add(step.after-time.Minute), func(id string) bool {
			asked++
			return id != "refused"
		})
		if err != nil || asked != step.asked {
			t.Errorf("sweep %d asks about %d keys: %v; want %d", i, asked, err, step.asked)
		}
	}
	if _, err := k.Get("refused"); !errors.Is(err, ErrNoKey) {
		t.Errorf("the key that nobody needs: %v", err)
	}
}

// TestAKeyThatIsUsedAgainIsNew: the first creation was refused, and the repeated one has not
// committed its sandbox yet.
func TestAKeyThatIsUsedAgainIsNew(t *testing.T) {
	k := made(t)
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(k.file("a"), old, old); err != nil {
		t.Fatal(err)
	}
	before := keyOf(t, k, "a")
	if err := k.Make("a"); err != nil {
		t.Fatal(err)
	}
	if err := k.Sweep(time.Now().Add(-time.Minute), func(string) bool { return false }); err != nil {
		t.Fatal(err)
	}
	if after := keyOf(t, k, "a"); !reflect.DeepEqual(before, after) {
		t.Error("it is another key")
	}
}
