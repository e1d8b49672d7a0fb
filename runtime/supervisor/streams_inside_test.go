package supervisor

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
)

func TestAMissingTerminalIsExplained(t *testing.T) {
	for want, err := range map[string]error{
		"All terminals of the sandbox are in use":                           &os.PathError{Op: "open", Path: "/dev/ptmx", Err: unix.ENOSPC},
		"The sandbox has no terminals (no device): use an image and engine": errors.New("no device"),
	} {
		fail := noTerminal(err)
		if fail.kind != guestv1.StartFailure_START_FAILURE_OTHER || !strings.HasPrefix(fail.message, want) {
			t.Errorf("%v: %q", err, fail.message)
		}
	}
}
