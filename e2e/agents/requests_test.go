package agents

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestRequestsWaitForADaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `echo up; until [ -e /tmp/enough ]; do agbox-agent children || exit 90; done
		agbox-agent api children; agbox-agent children now; [ $? = 1 ] || exit 91
		agbox-agent done complete`, "asker", "--in", "demo")
	up(t, in, "asker")
	for range 3 {
		in.KillDaemon(t)
		in.Must(t, "daemon", "start")
	}
	in.Must(t, "exec", "demo", "--", "touch", "/tmp/enough")
	await(t, in, id, "COMPLETED")
	if out := in.Must(t, "agent", "logs", id); !strings.Contains(out, `"result":{"children":[]}`) {
		t.Errorf("the answer is %q", out)
	}
}
