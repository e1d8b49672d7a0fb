package ledger

import (
	"testing"

	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestARepeatedCreateWithItsKeyGetsTheSameAnswer(t *testing.T) {
	dir := t.TempDir()
	l, closeDB := open(t, dir)
	spec := &agboxv1.CreateSpec{Image: "img", Name: "n"}
	key := RequestKey{Key: "k", Digest: []byte("d")}
	first, err := l.CreateKeyed(t.Context(), "a", spec, key)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		sb, again, err := l.RepeatedCreate(t.Context(), "a", key)
		if err != nil || !again || sb.Nonce != first.Nonce {
			t.Errorf("the same request: %+v, again %v, error %v", sb.Record, again, err)
		}
		// A client of another version may encode the same request in another way.
		recoded := RequestKey{Key: "k", Digest: []byte("other")}
		if _, again, err := l.RepeatedCreate(t.Context(), "a", recoded); again || err != nil {
			t.Errorf("another digest: again %v, error %v", again, err)
		}
		if sb, err := l.CreateKeyed(t.Context(), "a", spec, recoded); err != nil || sb.LastSequence != first.LastSequence {
			t.Errorf("the same spec: %+v, error %v", sb.Record, err)
		}
		_, err = l.CreateKeyed(t.Context(), "a", &agboxv1.CreateSpec{Image: "other"}, recoded)
		wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
		_, err = l.CreateKeyed(t.Context(), "b", &agboxv1.CreateSpec{Image: "img"}, key)
		wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
		_, _, err = l.RepeatedCreate(t.Context(), "b", key)
		wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
		for _, other := range []RequestKey{{}, {Key: "k2", Digest: []byte("d")}} {
			_, err = l.CreateKeyed(t.Context(), "a", spec, other)
			wantReason(t, err, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS)
		}
		closeDB()
		l, closeDB = open(t, dir)
	}
	gone(t, l, "a")
	if sb, again, err := l.RepeatedCreate(t.Context(), "a", key); err != nil || !again || !sb.Over() {
		t.Errorf("after the deletion: %+v, again %v, error %v", sb.Record, again, err)
	}
	_, err = l.CreateKeyed(t.Context(), "a", spec, key)
	wantReason(t, err, agboxv1.ErrorReason_SANDBOX_ID_ALREADY_EXISTS)
}

func TestARepeatedExecWithItsKeyIsAcceptedOnce(t *testing.T) {
	for _, key := range []string{"k", "x"} { // the second is the id itself, as clients choose it
		t.Run(key, func(t *testing.T) { repeatExec(t, key) })
	}
}

func repeatExec(t *testing.T, key string) {
	l := fresh(t)
	ready(t, l, "a")
	req := request("x")
	req.RequestKey = key
	for want := range 2 {
		known, err := l.RepeatedExec(t.Context(), req)
		if err != nil || known != (want == 1) {
			t.Errorf("known %v, error %v", known, err)
		}
		again, err := l.AcceptExec(t.Context(), req, "boot")
		if err != nil || again != (want == 1) {
			t.Errorf("again %v, error %v", again, err)
		}
	}
	reused := agboxv1.ErrorReason_REQUEST_KEY_REUSED
	if key == "x" {
		reused = agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS
	}
	other := proto.CloneOf(req)
	other.Command = []string{"false"}
	_, err := l.AcceptExec(t.Context(), other, "boot")
	wantReason(t, err, reused)
	if known, err := l.RepeatedExec(t.Context(), other); known || err != nil {
		t.Errorf("another command: known %v, error %v", known, err)
	}
	other = proto.CloneOf(req)
	other.ExecId = "y"
	_, err = l.AcceptExec(t.Context(), other, "boot")
	wantReason(t, err, agboxv1.ErrorReason_REQUEST_KEY_REUSED)
	_, err = l.AcceptExec(t.Context(), request("x"), "boot")
	wantReason(t, err, agboxv1.ErrorReason_EXEC_ID_ALREADY_EXISTS)
}

func TestAnIDThatIsNoKeyIsFreeAsAKey(t *testing.T) {
	l := fresh(t)
	ready(t, l, "a")
	if _, err := l.AcceptExec(t.Context(), request("x"), "boot"); err != nil {
		t.Fatal(err)
	}
	req := request("y")
	req.RequestKey = "x"
	if again, err := l.AcceptExec(t.Context(), req, "boot"); err != nil || again {
		t.Errorf("again %v, error %v", again, err)
	}
}
