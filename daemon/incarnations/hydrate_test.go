package incarnations

import (
	"context"
	"errors"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/paths"
)

const whole = `{"version":2,"state":{}}`

// unreadable is an agent whose checkpoint cannot be read: a folder has its name.
func unreadable(t *testing.T) (r *Runner, a ledger.Agent, file string) {
	t.Helper()
	install := paths.Install{Data: t.TempDir()}
	file = filepath.Join(install.AgentCheckpoints("x"), "1.json")
	if err := os.MkdirAll(file, 0o700); err != nil {
		t.Fatal(err)
	}
	a = ledger.Agent{Record: agents.Record{ID: "x", Checkpoints: []*agboxv1.AgentCheckpoint{
		{Seq: 1, Format: checkpoint.Version, Bytes: uint64(len(whole)), Crc32: crc32.ChecksumIEEE([]byte(whole))},
	}}}
	return New(nil, nil, nil, install, nil, time.Now, slog.New(slog.DiscardHandler)), a, file
}

func TestCheckpointsThatCannotBeReadAreReadThrice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a, file := unreadable(t)
		begun := time.Now()
		_, _, err := r.newest(t.Context(), a)
		if lost := errHydration(""); !errors.As(err, &lost) || !strings.HasPrefix(err.Error(), "The checkpoints of job x cannot be read: ") || !strings.Contains(err.Error(), file) {
			t.Errorf("it fails with %v", err)
		}
		if took := time.Since(begun); took != 4*time.Second {
			t.Errorf("it took %v; want three tries, 2 s apart", took)
		}
	})
}

func TestACheckpointThatCanBeReadAgainIsUsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a, name := unreadable(t)
		time.AfterFunc(3*time.Second, func() { // between the second and the third try
			if err := errors.Join(os.Remove(name), os.WriteFile(name, []byte(whole), 0o600)); err != nil {
				t.Error(err)
			}
		})
		c, file, err := r.newest(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(file)
		if err := errors.Join(err, file.Close()); err != nil || c.GetSeq() != 1 || string(raw) != whole {
			t.Errorf("checkpoint %d is %q: %v", c.GetSeq(), raw, err)
		}
	})
}

func TestReadingCheckpointsEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, a, _ := unreadable(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		if _, _, err := r.newest(ctx, a); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != time.Second {
			t.Errorf("it ended after %v with %v", time.Since(begun), err)
		}
	})
}
