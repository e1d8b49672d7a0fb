package ledger

import (
	"fmt"
	"reflect"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// TestNothingIsKeptInMemoryOfSandboxesThatAreGone checks every map of a Ledger, so that
// it also covers maps that are added later.
func TestNothingIsKeptInMemoryOfSandboxesThatAreGone(t *testing.T) {
	l := fresh(t)
	for i := range 20 {
		id := fmt.Sprintf("s%d", i)
		create(t, l, id, "name-"+id)
		emit(t, l, id, agboxv1.EventType_SANDBOX_READY)
		changed := l.Changed(id)
		exec := request("x" + id)
		exec.SandboxId = id
		if _, err := l.AcceptExec(t.Context(), exec, "boot"); err != nil {
			t.Fatal(err)
		}
		<-changed
		done := l.ExecDone("x" + id)
		if err := l.EndExec(t.Context(), id, &agboxv1.ExecEventDetails{ExecId: "x" + id, ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}); err != nil {
			t.Fatal(err)
		}
		<-done
		changed = l.Changed(id)
		gone(t, l, id)
		<-changed
		// A stream of events calls this before it reads that the sandbox is gone.
		select {
		case <-l.Changed(id):
			t.Error("a sandbox that is gone has changed")
		default:
		}
	}
	l.Touched() // as retention does
	v := reflect.ValueOf(l).Elem()
	for i := range v.NumField() {
		if f := v.Field(i); f.Kind() == reflect.Map && f.Len() > 0 {
			t.Errorf("%s holds %d entries: %v", v.Type().Field(i).Name, f.Len(), f.MapKeys())
		}
	}
}
