package server

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/reconcile"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
	"github.com/agbox/agbox/store"
)

// newLedger makes an empty ledger in a database of its own.
func newLedger(t *testing.T) (*ledger.Ledger, *store.Store) {
	t.Helper()
	dir := t.TempDir()
	db, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "ids.db"), Sentinel: filepath.Join(dir, "install-id")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	book, err := ledger.Open(t.Context(), db, time.Now, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return book, db
}

// hung is a loop whose engine does not answer.
type hung struct{ Loop }

func (hung) Condition(ledger.Sandbox) reconcile.Condition { return reconcile.Condition{} }

func (hung) Containers(ctx context.Context, _ ledger.Sandbox) []runtime.Container {
	<-ctx.Done()
	return nil
}

func TestAHandleDoesNotNeedTheEngine(t *testing.T) {
	book, _ := newLedger(t)
	if _, err := book.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: runtimetest.FakeImage}); err != nil {
		t.Fatal(err)
	}
	calls := &sandboxCalls{ledger: book, loop: hung{}}
	resp, err := calls.GetSandbox(t.Context(), &agboxv1.GetSandboxRequest{SandboxId: "a", HandleOnly: true})
	if err != nil || resp.GetSandbox().GetSandboxId() != "a" || resp.GetCreateSpec() != nil {
		t.Errorf("the answer is %v, %v", resp, err)
	}
}

// Nobody has made it, so it is in no list of what there is, but in that of what still uses an image.
func TestWhatNobodyHadIsListedAsEndedWhileItIsRemoved(t *testing.T) {
	book, _ := newLedger(t)
	spec := &agboxv1.CreateSpec{Image: runtimetest.FakeImage}
	p, err := book.SetPool(t.Context(), "stock", 2, spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"kept", "dropped"} {
		if _, err := book.CreateAhead(t.Context(), id, p.ID, spec); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := book.DropAhead(t.Context(), "dropped"); err != nil {
		t.Fatal(err)
	}
	calls := &sandboxCalls{ledger: book, loop: hung{}}
	resp, err := calls.ListSandboxes(t.Context(), new(agboxv1.ListSandboxesRequest))
	if list := resp.GetSandboxes(); err != nil || len(list) != 1 || list[0].GetSandboxId() != "dropped" || !list[0].GetEnded() {
		t.Errorf("the list is %v, %v", list, err)
	}
}

func TestATextThatCanBeNoIDAndNoNameIsRefusedInWords(t *testing.T) {
	for kind, texts := range map[agboxv1.RefKind]map[string]string{
		agboxv1.RefKind_REF_KIND_SANDBOX: {"../x": "is not an id or a name", "a b": "is not an id or a name", "a\nb": "is not an id or a name", "a/b": "is not an id or a name", "": "Give a sandbox", strings.Repeat("a", 201): "200 characters"},
		agboxv1.RefKind_REF_KIND_EXEC:    {"demo/main/x": "SANDBOX/NAME", "../../etc/passwd": "SANDBOX/NAME", "/x": "SANDBOX/NAME", "x/": "SANDBOX/NAME", "": "Give an exec"},
		agboxv1.RefKind_REF_KIND_AGENT:   {"": "Give an agent", strings.Repeat("a", 201): "200 characters"},
	} {
		for text, want := range texts {
			_, err := new(sandboxCalls).Resolve(t.Context(), &agboxv1.ResolveRequest{Kind: kind, Text: text})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q: %v, want %q", text, err, want)
			}
		}
	}
}
