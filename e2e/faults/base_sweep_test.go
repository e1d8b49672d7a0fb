package faults

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/daemon/review"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestKillAtManyBoundariesOfStoringABase(t *testing.T) {
	t.Parallel()
	row := Row(t, 62, "SIGKILL of the daemon while it stores the base of a workspace, at changes of its files", 0)
	w := newWitness(t, harness.New(t))
	dir := t.TempDir()
	large := make([]byte, 5<<19) // three blocks of a base
	_, _ = rand.NewChaCha8([32]byte{7}).Read(large)
	source := map[string][]byte{"a": []byte("before\n"), "sub/large": large, "empty": {}}
	for path, content := range source {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	guest := filepath.Join(w.in.Home, "data", "guest")
	id := func(n int) string { return fmt.Sprintf("c-%d", n) }
	kills, calls := sweep(t, w, operation{
		name: "base", step: 6, below: guest,
		run: func(ctx context.Context, n int) error {
			cmd := w.in.Command(ctx, "agbox", "create", id(n), "--id", id(n), "--image", harness.ImageBusybox, "--workspace", dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		},
		verify: func(t *testing.T, k kill) {
			w.holds(id(k.n), agboxv1.SandboxState_SANDBOX_STATE_READY)
			wantBase(t, filepath.Join(guest, id(k.n), "base"), source)
			w.in.Must(t, "exec", id(k.n), "--", "sh", "-c", "echo after > /workspace/a")
			work, err := w.c.Work(harness.Bounded(t), id(k.n), client.WorkOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer work.Close()
			if len(work.Changes) != 1 || work.Changes[0].Path != "a" {
				t.Errorf("killed before %q: the changes are %+v", k.before, work.Changes)
			}
			w.in.Must(t, "rm", "--wait", "-f", id(k.n))
			w.holds(id(k.n), agboxv1.SandboxState_SANDBOX_STATE_DELETED)
		},
	})
	row.Ran(kills)
	row.Note("base: before %s", calls)
	w.check(t)
}

func TestKillAtManyBoundariesOfAnAdvanceOfABase(t *testing.T) {
	t.Parallel()
	row := Row(t, 62, "SIGKILL of the daemon while the base advances after \"agbox apply\"", 0)
	w := newWitness(t, harness.New(t))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	box := w.box(t, "demo", "--workspace", dir)
	base := filepath.Join(w.in.Home, "data", "guest", box, "base")
	kills, calls := sweep(t, w, operation{
		name: "advance", step: 3, below: base,
		prepare: func(t *testing.T, n int) {
			w.in.Must(t, "exec", box, "--", "sh", "-c", fmt.Sprintf("echo %d > /workspace/a", n))
		},
		run: func(ctx context.Context, _ int) error {
			if out, err := w.in.Command(ctx, "agbox", "apply", box).CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		},
		dead: func(t *testing.T, n int) {
			b, err := review.OpenBase(base)
			if err != nil {
				t.Fatalf("killed at boundary %d: %v", n, err)
			}
			b.Close()
		},
		verify: func(t *testing.T, k kill) {
			want := []byte(fmt.Sprintf("%d\n", k.n))
			wantBase(t, base, map[string][]byte{"a": want})
			if got, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the folder has %q: %v", got, err)
			}
		},
	})
	row.Ran(kills)
	row.Note("advance: before %s", calls)
	w.check(t)
}

// wantBase checks that a base has exactly these files.
func wantBase(t *testing.T, dir string, want map[string][]byte) {
	t.Helper()
	base, err := review.OpenBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer base.Close()
	if len(base.GetFiles()) != len(want) {
		t.Errorf("the base has %d files", len(base.GetFiles()))
	}
	for path, content := range want {
		var got bytes.Buffer
		f := base.File(path)
		if f == nil {
			t.Errorf("the base lacks %s", path)
		} else if err := base.Content(f, &got); err != nil || !bytes.Equal(got.Bytes(), content) {
			t.Errorf("%s of the base has %d bytes that are not its %d: %v", path, got.Len(), len(content), err)
		}
	}
}
