package store

import (
	"errors"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestRequestKeysAreForgottenWithTheirRecords(t *testing.T) {
	s := newStore(t)
	exec := func(tx *Tx, id, key string) error {
		return errors.Join(tx.ReserveExec(id, testTime), tx.PutExecKey(id, key),
			tx.PutExecConfig("box", id, &agboxv1.CreateExecRequest{SandboxId: "box", ExecId: id, RequestKey: key}))
	}
	mustUpdate(t, s, func(tx *Tx) error {
		return errors.Join(reserve("box")(tx), tx.PutSandboxConfig("box", &agboxv1.CreateSpec{}), tx.PutSandboxKey("box", "k", []byte("d")),
			exec(tx, "x1", "k1"), exec(tx, "x2", "k2"), exec(tx, "x3", "x3"), exec(tx, "x4", "x5"))
	})
	want := func(sandbox, digest, one, two string) {
		t.Helper()
		mustView(t, s, func(tx *Tx) {
			if tx.SandboxOfKey("k") != sandbox || string(tx.sandboxRequest("box").GetDigest()) != digest || tx.ExecOfKey("k1") != one || tx.ExecOfKey("k2") != two {
				t.Errorf("the keys belong to %q (%q), %q and %q", tx.SandboxOfKey("k"), tx.sandboxRequest("box").GetDigest(), tx.ExecOfKey("k1"), tx.ExecOfKey("k2"))
			}
		})
	}
	want("box", "d", "x1", "x2")
	own := func(x3, x4 string) {
		t.Helper()
		mustView(t, s, func(tx *Tx) {
			if tx.ExecOfKey("x3") != x3 || tx.ExecOfKey("x4") != x4 || tx.ExecOfKey("none") != "" {
				t.Errorf("the ids are keys of %q, %q and %q", tx.ExecOfKey("x3"), tx.ExecOfKey("x4"), tx.ExecOfKey("none"))
			}
		})
	}
	own("x3", "")
	mustUpdate(t, s, func(tx *Tx) error { return tx.ForgetExecs("box", "x3") })
	own("", "")
	mustUpdate(t, s, func(tx *Tx) error { return tx.ForgetExecs("box", "x1") })
	want("box", "d", "", "x2")
	mustUpdate(t, s, func(tx *Tx) error { return tx.DropSandbox("box") })
	want("", "", "", "")
}
