package agents

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestTheContextHookAddsToTheHydration(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const script = `agbox-agent hydrate || exit 80
		[ $AGBOX_INCARNATION = 1 ] || { agbox-agent done complete; exit; }
		echo '{"topic":"bees"}' | agbox-agent checkpoint --step 3; exit 9`
	for name, want := range map[string]struct {
		hook []string
		out  string
	}{
		"finds": {[]string{"sh", "-c", `grep -o bees || echo nothing`}, `"context":"bees\n"`},
		"fails": {[]string{"false"}, `The context hook has failed (exit status 1): go on without what it would have added.`},
	} {
		id := spawnSpec(t, in, script, &agboxv1.AgentSpec{Name: name, ContextHook: want.hook, Retry: &agboxv1.AgentRetry{Delays: []*durationpb.Duration{durationpb.New(10 * time.Millisecond)}}})
		await(t, in, id, "COMPLETED")
		if out := in.Must(t, "agent", "logs", id); !strings.Contains(out, want.out) {
			t.Errorf("%s: the program got\n%s", name, out)
		}
	}
}
