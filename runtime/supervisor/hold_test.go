package supervisor_test

import (
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

func TestACommandThatIsHeldBackStartsOnceWhenItIsReleased(t *testing.T) {
	b := newBox(t, withMain("sh", "-c", "echo began"), func(_ *box, boot *guestv1.BootConfig) { boot.HoldCommand = true })
	c := b.dial()
	if id := c.MainExecID(); id != "" {
		t.Errorf("before its release it runs as %s", id)
	}
	b.run(sh("other", "true")) // execs run meanwhile
	for range 2 {
		if err := c.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	id := c.MainExecID()
	if id == "" {
		t.Fatal("its id is not told")
	}
	if again := b.dial(); again.MainExecID() != id {
		t.Errorf("another link is told %q", again.MainExecID())
	}
	b.end(id)
	b.stop()
	if got := b.stdout(id); got != "began\n" {
		t.Errorf("it wrote %q", got)
	}
}

func TestACommandThatIsHeldBackDoesNotHoldUpTheEnd(t *testing.T) {
	b := newBox(t, withMain("sh", "-c", "echo began"), func(_ *box, boot *guestv1.BootConfig) { boot.HoldCommand = true })
	b.dial()
	b.stop()
}
