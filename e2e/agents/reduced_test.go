package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAServiceIsStoppedForTheAttemptAfterMemoryRanOut(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	file := filepath.Join(t.TempDir(), "agbox.yaml")
	const service = `, command: [sh, -c, "trap 'exit 0' TERM; sleep 100000 & wait"]}` + "\n"
	text := "image: " + harness.ImageBusybox + "\nservices:\n" +
		"  - {name: db, image: " + harness.ImageBusybox + service +
		"  - {name: web, image: " + harness.ImageBusybox + service
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	box := in.Must(t, "create", "-f", file)
	ctx := harness.Bounded(t)
	script := `echo "$AGBOX_INCARNATION $AGBOX_STRATEGY $(nslookup db >/dev/null 2>&1; echo $?) $(nslookup web >/dev/null 2>&1; echo $?)"
		[ $AGBOX_INCARNATION = 1 ] && kill -9 $$
		cd /var/log/agents-sandbox; while [ ! -e gate ]; do sleep 0.05; done`
	a, err := in.Client(t).SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{
		SandboxId: box,
		Spec: &agboxv1.AgentSpec{Command: []string{"sh", "-c", script}, Retry: &agboxv1.AgentRetry{
			Delays:  []*durationpb.Duration{durationpb.New(0)},
			Reduced: &agboxv1.AgentReduced{WithoutServices: []string{"db"}},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the second incarnation has looked", func() bool {
		return strings.Count(in.Must(t, "agent", "logs", a.GetAgentId()), "\n") == 1
	})
	harness.WantSame(t, "what the program sees", in.Must(t, "agent", "logs", a.GetAgentId()), "1  0 0\n2 reduced_footprint 1 0")
	if shown := in.Must(t, "inspect", box); !strings.Contains(shown, "is stopped while agent "+a.GetAgentId()+" runs with a reduced footprint") {
		t.Errorf("inspect does not say why the service is stopped:\n%s", shown)
	}
	if err := os.WriteFile(filepath.Join(in.Home, "data", "exec-logs", box, "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, in, a.GetAgentId(), "COMPLETED")
	harness.Eventually(t, "the service runs again", func() bool {
		return in.Agbox(t, "exec", box, "--", "nslookup", "db").Code == 0
	})
}
