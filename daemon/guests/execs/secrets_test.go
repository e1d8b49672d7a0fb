package execs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// acceptSecret accepts exec "x" with a secret variable, as a daemon that is killed before
// it sends the exec.
func acceptSecret(t *testing.T, b *bench) {
	t.Helper()
	req := &agboxv1.CreateExecRequest{SandboxId: "a", ExecId: "x", Command: []string{"true"}, EnvOverrides: map[string]string{"TOKEN": "canary", "A": "b"}}
	if _, err := b.ledger.AcceptExec(t.Context(), req, "boot1"); err != nil {
		t.Fatal(err)
	}
}

func TestAnExecThatIsStartedLateGetsItsSecrets(t *testing.T) {
	b := newBench(t)
	acceptSecret(t, b)
	env := make(chan []string, 1)
	b.serve(&supervisor{boot: "boot1", start: func(req *guestv1.StartRequest) *guestv1.ExecRecord {
		env <- req.GetEnv()
		return exited(0)
	}})
	b.connect()
	if st := b.ended(); st.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED {
		t.Errorf("status %v", st)
	}
	if got := <-env; !slices.Equal(got, []string{"A=b", "TOKEN=canary"}) {
		t.Errorf("the command got %q", got)
	}
}

func TestAnExecWhoseSecretsCannotBeReadIsNotStarted(t *testing.T) {
	b := newBench(t)
	acceptSecret(t, b)
	if err := os.RemoveAll(filepath.Join(b.install.Data, "secret-keys")); err != nil {
		t.Fatal(err)
	}
	s := &supervisor{boot: "boot1", start: func(*guestv1.StartRequest) *guestv1.ExecRecord { return exited(0) }}
	b.serve(s)
	b.connect()
	st := b.ended()
	if st.GetState() != agboxv1.ExecState_EXEC_STATE_FAILED || st.GetErrorCode() != "SECRETS_UNREADABLE" || st.GetExitCode() == 0 || s.started() != 0 {
		t.Errorf("started %d times, status %v", s.started(), st)
	}
}
