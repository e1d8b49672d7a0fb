package ledger

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// idModel is what histories of creating, naming and deleting sandboxes must lead to. It knows
// ids as whole texts only.
type idModel struct {
	// names has the names of the sandboxes that are not deleted, by id; empty means none.
	names map[string]string
	// deleted has the ids of deleted sandboxes: false once the record is dropped.
	deleted map[string]bool
}

// idsAndNames are ids and names, so that each is a prefix or the name of others.
var idsAndNames = []string{"a", "a1", "a10", "a100", "job", "job-1", "job-10", "job-2"}

// means says what Resolve must answer to a text, as "ID MATCH".
func (m idModel) means(text string) (want []string) {
	if _, living := m.names[text]; living {
		return []string{text + " ID"}
	}
	kept, was := m.deleted[text]
	if kept {
		want = append(want, text+" ID")
	}
	for id, name := range m.names {
		if name == text {
			want = append(want, id+" NAME")
		}
	}
	if len(want) > 0 || was {
		return want
	}
	for _, id := range slices.Sorted(maps.Keys(m.names)) {
		if strings.HasPrefix(id, text) {
			want = append(want, id+" PREFIX")
		}
	}
	return want
}

// check compares the ledger with the model.
func (m idModel) check(t *testing.T, l *Ledger, did string) {
	t.Helper()
	living := map[string]string{}
	for _, sb := range l.Sandboxes() {
		living[sb.ID] = sb.Name
	}
	if !maps.Equal(living, m.names) {
		t.Fatalf("%s: sandboxes %v, want %v", did, living, m.names)
	}
	for _, text := range idsAndNames {
		sb, err := l.FindSandbox(t.Context(), text)
		_, lives := m.names[text]
		if found := lives || m.deleted[text]; found != (err == nil) || err == nil && sb.ID != text || err != nil && !errdefs.IsNotFound(err) {
			t.Fatalf("%s: id %q is found as %q, %v; want found %v", did, text, sb.ID, err, found)
		}
		if want := m.means(text); len(want) > 0 {
			means(t, l, ofSandbox, text, want...)
		} else if list, err := l.Resolve(t.Context(), ofSandbox, text); !errdefs.IsNotFound(err) {
			t.Fatalf("%s: %q means %v, %v; want nothing", did, text, list, err)
		}
	}
}

// step does one request of a client, which takes any text for an id, and tells the model what it
// must have done: something to the sandbox with exactly this id, or nothing.
func (m idModel) step(t *testing.T, l *Ledger, r *rand.Rand) string {
	id, name := idsAndNames[r.IntN(len(idsAndNames))], idsAndNames[r.IntN(len(idsAndNames))]
	_, lives := m.names[id]
	_, was := m.deleted[id]
	isName := func(text string) bool { return slices.Contains(slices.Collect(maps.Values(m.names)), text) }
	_, isID := m.names[name]
	free := !isName(name) && (!isID || name == id)
	switch r.IntN(6) {
	case 0, 1:
		_, err := l.Create(t.Context(), id, &agboxv1.CreateSpec{Image: "img", Name: name})
		if fits := !lives && !was && free; fits != (err == nil) {
			t.Fatalf("create %s as %s: %v in %v", id, name, err, m)
		} else if fits {
			m.names[id] = name
		}
		return fmt.Sprintf("create %s as %s", id, name)
	case 2:
		if sb, err := l.FindSandbox(t.Context(), id); err == nil {
			_, err = l.Rename(t.Context(), sb.ID, name)
			if fits := lives && (free || m.names[id] == name); fits != (err == nil) {
				t.Fatalf("rename %s to %s: %v in %v", id, name, err, m)
			} else if fits {
				m.names[id] = name
			}
		}
		return fmt.Sprintf("rename %s to %s", id, name)
	case 3:
		if err := l.Drop(t.Context(), id); err != nil && !errdefs.IsNotFound(err) {
			t.Fatal(err)
		}
		if was {
			m.deleted[id] = false
		}
		return "drop the record of " + id
	}
	if sb, err := l.FindSandbox(t.Context(), id); err == nil {
		if sb, err = l.RequestDelete(t.Context(), sb.ID); err != nil {
			t.Fatalf("delete %s: %v", id, err)
		}
		if !sb.Over() {
			emit(t, l, sb.ID, agboxv1.EventType_SANDBOX_DELETED)
		}
		if lives {
			delete(m.names, id)
			m.deleted[id] = true
		}
	}
	return "delete " + id
}

func TestNoHistoryOfNamesLetsARequestReachAnotherIDThanItsOwn(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			l, r := fresh(t), rand.New(rand.NewPCG(seed, 0))
			m := idModel{names: map[string]string{}, deleted: map[string]bool{}}
			for range 40 {
				m.check(t, l, m.step(t, l, r))
			}
		})
	}
}
