package supervisor_test

import (
	"fmt"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/agbox/agbox/runtime/supervisor"
)

func TestExecsStartWithNoSignalBlockedOrIgnored(t *testing.T) {
	// The supervisor inherits the ignored signals of this process.
	signal.Ignore(syscall.SIGWINCH)
	t.Cleanup(func() { signal.Reset(syscall.SIGWINCH) })
	for _, n := range supervisor.ThreadSignals {
		t.Cleanup(supervisor.Ignore(n))
	}
	b := newBox(t)
	for i := range 20 {
		id := fmt.Sprint("e", i)
		b.run(request(id, "grep", "-E", "^Sig(Blk|Ign|Pnd)", "/proc/self/status"))
		if out := b.stdout(id); strings.Count(out, "0000000000000000") != 3 {
			t.Errorf("an exec has %s", out)
		}
	}
}
