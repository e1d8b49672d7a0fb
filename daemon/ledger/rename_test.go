package ledger

import (
	"fmt"
	"sync"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

// named fails the test unless the name leads to the sandbox with the id; an empty id means
// to none.
func named(t *testing.T, l *Ledger, name, id string) {
	t.Helper()
	if id == "" {
		_, err := l.Resolve(t.Context(), agboxv1.RefKind_REF_KIND_SANDBOX, name)
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
		return
	}
	means(t, l, agboxv1.RefKind_REF_KIND_SANDBOX, name, id+" NAME")
}

func rename(t *testing.T, l *Ledger, id, name string) Sandbox {
	t.Helper()
	sb, err := l.Rename(t.Context(), id, name)
	if err != nil || sb.Name != name {
		t.Fatalf("the name is %q (%v), want %s", sb.Name, err, name)
	}
	return sb
}

func TestANewNameLeadsToTheSandboxAndTheOldOneIsFree(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	create(t, l, "aa", "old")
	before := rename(t, l, "aa", "new").LastSequence
	if again := rename(t, l, "aa", "new"); again.LastSequence != before {
		t.Error("a repeated request made another event")
	}
	named(t, l, "new", "aa")
	named(t, l, "old", "")
	create(t, l, "bb", "old")
	named(t, l, "old", "bb")
	closeDB()
	l, _ = open(t, dir)
	named(t, l, "new", "aa")
	named(t, l, "old", "bb")
	rename(t, l, "bb", "third")
	rename(t, l, "aa", "old")
	named(t, l, "old", "aa")
	gone(t, l, "aa")
	named(t, l, "old", "")
	create(t, l, "cc", "old")
}

func TestANameThatIsTakenAndASandboxThatGoesAreRefused(t *testing.T) {
	l := fresh(t)
	create(t, l, "aa", "first")
	create(t, l, "bb", "second")
	_, err := l.Rename(t.Context(), "bb", "first")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	_, err = l.Rename(t.Context(), "bb", "aa") // the id of another one
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	rename(t, l, "bb", "bb")                       // its own
	for _, name := range []string{"aa", "first"} { // an id that is a name, of one that has it too
		_, err = l.Create(t.Context(), "first", &agboxv1.CreateSpec{Image: "img", Name: name})
		wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NAME_EXISTS)
	}
	create(t, l, "first", "") // clients that do not know names choose any id
	gone(t, l, "first")
	_, err = l.Rename(t.Context(), "nosuch", "third")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_NOT_FOUND)
	if _, err := l.RequestDelete(t.Context(), "aa"); err != nil {
		t.Fatal(err)
	}
	_, err = l.Rename(t.Context(), "aa", "third")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_INVALID_STATE)
	emit(t, l, "aa", agboxv1.EventType_SANDBOX_DELETED)
	_, err = l.Rename(t.Context(), "aa", "third")
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_INVALID_STATE)
	rename(t, l, "bb", "first")
}

func TestOfManySandboxesThatWantANameOneGetsIt(t *testing.T) {
	l := fresh(t)
	const callers = 32
	for i := range callers {
		create(t, l, fmt.Sprintf("sb%d", i), "")
	}
	var won int
	var mu sync.Mutex // guards won
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			_, err := l.Rename(t.Context(), fmt.Sprintf("sb%d", i), "n")
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if fault.ReasonOf(err) != agboxv1.ErrorReason_SANDBOX_NAME_EXISTS {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if won != 1 {
		t.Errorf("%d sandboxes have the name", won)
	}
}
