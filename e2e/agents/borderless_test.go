package agents

import (
	"encoding/binary"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// withoutBorders makes the events with which agents were spawned those of a daemon for which
// sandboxes were no borders.
func withoutBorders(t *testing.T, in *harness.Install, ids ...string) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(in.Home, "data", "ids.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	err = db.Update(func(tx *bolt.Tx) error {
		for _, id := range ids {
			bucket, first := tx.Bucket([]byte("agent-events:"+id)), binary.BigEndian.AppendUint64(nil, 1)
			ev := new(agboxv1.AgentEvent)
			if err := proto.Unmarshal(bucket.Get(first), ev); err != nil {
				return err
			}
			ev.GetSpawned().StackRoots, ev.GetSpawned().Reach = nil, ""
			raw, err := proto.Marshal(ev)
			if err != nil {
				return err
			}
			if err := bucket.Put(first, raw); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestAgentsFromBeforeSandboxesWereBordersShareThemWithNewOnes: the border is that of the sandbox,
// for leases and messages, and one that waited for a lease of another sandbox gets it.
func TestAgentsFromBeforeSandboxesWereBordersShareThemWithNewOnes(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	demo, other := in.Create(t, "demo", harness.ImageBusybox), in.Create(t, "other", harness.ImageBusybox)
	before := func(script, name, sandbox string) string {
		return spawn(t, in, script, name, "--in", sandbox, "--reach", "all")
	}
	waiting := before(`agbox-agent recv && agbox-agent acquire --wait db && agbox-agent done complete`, "waiting", "other")
	holding := before(`agbox-agent acquire db && agbox-agent recv && agbox-agent send new hello && agbox-agent send waiting hello
		sleep 1000`, "holding", "demo")
	holds := func(a *agboxv1.Agent) bool { return len(a.GetLeases()) == 1 }
	until(t, in, holding, "it holds the lease", holds)
	in.Must(t, "agent", "send", "waiting", "go")
	until(t, in, waiting, "it waits for the lease", func(a *agboxv1.Agent) bool { return a.GetMessage() == "It waits for holding, which holds db." })
	in.Must(t, "daemon", "stop")
	withoutBorders(t, in, waiting, holding)
	in.Must(t, "daemon", "start")
	await(t, in, waiting, "COMPLETED")
	fresh := spawn(t, in, `agbox-agent acquire db; [ $? = 11 ] && agbox-agent done complete`, "fresh", "--in", "demo")
	await(t, in, fresh, "COMPLETED")
	receiving := spawn(t, in, `agbox-agent recv && agbox-agent done complete`, "new", "--in", "demo")
	in.Must(t, "agent", "send", "holding", "go")
	await(t, in, receiving, "COMPLETED")
	harness.Eventually(t, "what it has sent to the other sandbox comes back", func() bool {
		return strings.Contains(in.Must(t, "agent", "inbox", "holding"), "waiting")
	})
	for name, scope := range map[string]string{"waiting": "sandbox:" + other, "holding": "sandbox:" + demo} {
		if out := in.Must(t, "agent", "inspect", name); !strings.Contains(out, scope) {
			t.Errorf("%s is within\n%s", name, out)
		}
	}
}
