package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/e2e/internal/robot"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/store"
)

// checkStored checks what the killed daemon left in its database: what must be one transaction
// is there as a whole or not at all. It reads a copy. Nobody acknowledges the messages.
func (w *witness) checkStored(t *testing.T) {
	t.Helper()
	data, at := filepath.Join(w.in.Home, "data"), t.TempDir()
	for _, name := range []string{"ids.db", "install-id"} {
		raw, err := os.ReadFile(filepath.Join(data, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, name), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	db, err := store.Open(harness.Bounded(t), store.Options{Path: filepath.Join(at, "ids.db"), Sentinel: filepath.Join(at, "install-id")})
	if err != nil {
		t.Fatal(err)
	}
	told, happened := make(map[string]int), make(map[string]int)
	besides := make(map[string]int) // the root is told of these, whether it is the parent or not
	err = db.View(harness.Bounded(t), func(tx *store.Tx) error {
		for _, id := range append(tx.AgentIDs(), robot.Root) {
			parent := ""
			for _, ev := range tx.AgentEvents(id, 0, 1000).Records {
				switch ev.GetType() {
				case agboxv1.AgentEventType_AGENT_SPAWNED:
					parent = ev.GetSpawned().GetParent()
				case agboxv1.AgentEventType_AGENT_REPARENTED:
					parent = ev.GetReparent().GetParent()
					happened[fmt.Sprintf("%s adopted %s", parent, id)]++
				case agboxv1.AgentEventType_AGENT_ENDED:
					happened[fmt.Sprintf("%s has the ended child %s", parent, id)]++
				}
			}
			for _, m := range tx.Messages(id, 0, 1000, 0).Records {
				switch m.GetKind() {
				case agboxv1.MessageKind_MESSAGE_KIND_ADOPTED:
					told[fmt.Sprintf("%s adopted %s", id, m.GetFrom())]++
				case agboxv1.MessageKind_MESSAGE_KIND_CHILD, agboxv1.MessageKind_MESSAGE_KIND_DEAD_LETTER, agboxv1.MessageKind_MESSAGE_KIND_BUDGET:
					if id == robot.Root && m.GetKind() != agboxv1.MessageKind_MESSAGE_KIND_CHILD {
						besides[fmt.Sprintf("%s has the ended child %s", id, m.GetFrom())]++
						continue
					}
					told[fmt.Sprintf("%s has the ended child %s", id, m.GetFrom())]++
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Error(err)
	}
	for what, n := range besides {
		if happened[what] > 0 {
			told[what] += n
		}
	}
	for what := range told {
		if happened[what] == 0 {
			t.Errorf("the database says that %s is told, and not that it happened", what)
		}
	}
	for what, n := range happened {
		if n != told[what] {
			t.Errorf("%s: that happened %d times in the database, and is told %d times", what, n, told[what])
		}
	}
}
