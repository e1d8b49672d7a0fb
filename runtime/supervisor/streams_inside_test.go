package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
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

func TestWhoeverHasEndedIsForgottenBeforeWhoIsStillThere(t *testing.T) {
	in := newInput(nil, true)
	in.typist("person").count = 3
	for i := range 2 * maxWriters {
		in.typist(fmt.Sprint("script", i)).eof = true
	}
	if n := in.count("person"); n != 3 {
		t.Errorf("the count of the one who is still there is %d, not 3", n)
	}
	for i := range maxWriters {
		in.typist(fmt.Sprint("lasting", i)).count = 5
	}
	if in.writers["person"] != nil || in.count("lasting0") != 5 || len(in.writers) != maxWriters {
		t.Errorf("of those who are still there not the one is forgotten that has not typed for longest; %d are known", len(in.writers))
	}
}
