package ledger

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// longAgo makes a deleted sandbox that ran so many execs.
func longAgo(t testing.TB, l *Ledger, id string, execs int) {
	t.Helper()
	ready(t, l, id)
	for i := range execs {
		req := request(fmt.Sprint(id, "-", i))
		req.SandboxId = id
		if _, err := l.AcceptExec(t.Context(), req, "boot"); err != nil {
			t.Fatal(err)
		}
		if err := l.EndExec(t.Context(), id, &agboxv1.ExecEventDetails{ExecId: req.GetExecId(), ExecState: agboxv1.ExecState_EXEC_STATE_FINISHED}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.RequestDelete(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	emit(t, l, id, agboxv1.EventType_SANDBOX_DELETED)
}

func TestALongHistoryOfADeletedSandboxIsReadOnce(t *testing.T) {
	l := fresh(t)
	longAgo(t, l, "busy", 100)
	longAgo(t, l, "quiet", 1)
	read := func(id string) (Sandbox, uint64) {
		t.Helper()
		before := l.past.folded.Load()
		sb, err := l.Past(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return sb, l.past.folded.Load() - before
	}
	first, events := read("busy")
	again, more := read("busy")
	if events < 200 || more != 0 {
		t.Errorf("the first read takes %d events, the second %d; want all, and none", events, more)
	}
	if !reflect.DeepEqual(first.Record, again.Record) || first.Spec != again.Spec {
		t.Errorf("it is %+v, and then %+v", first.Record, again.Record)
	}
	read("quiet")
	if _, kept, _ := l.past.get("quiet"); kept {
		t.Error("a short history is kept in memory")
	}
	if err := l.Drop(t.Context(), "busy"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Past(t.Context(), "busy"); !errdefs.IsNotFound(err) {
		t.Errorf("a sandbox that was dropped is shown: %v", err)
	}
}

func TestWhatIsKeptOfDeletedSandboxesIsBounded(t *testing.T) {
	l := fresh(t)
	longAgo(t, l, "a", 40)
	sb, err := l.Past(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	_, _, dropped := l.past.get("a")
	for i := range 2 * maxPast {
		sb.ID = fmt.Sprint("s", i)
		l.past.put(sb, dropped)
	}
	if n := len(l.past.kept); n != maxPast {
		t.Errorf("%d deleted sandboxes are kept, want at most %d", n, maxPast)
	}
	l.past.drop("other")
	sb.ID = "read-before"
	l.past.put(sb, dropped)
	if _, kept, _ := l.past.get("read-before"); kept {
		t.Error("one is kept that may have been dropped while it was read")
	}
}

// BenchmarkPast is a read of a deleted sandbox that ran so many execs: the first, and any other.
func BenchmarkPast(b *testing.B) {
	for _, execs := range []int{1, 1000} {
		l := fresh(b)
		longAgo(b, l, "a", execs)
		for _, what := range []string{"first", "again"} {
			b.Run(fmt.Sprint(execs, "/", what), func(b *testing.B) {
				for b.Loop() {
					if what == "first" {
						l.past.drop("a")
					}
					if _, err := l.Past(b.Context(), "a"); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
