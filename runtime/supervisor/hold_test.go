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

// TestAConfigurationReachesEverythingThatBeginsAfterIt: somebody takes a container that was made ahead.
func TestAConfigurationReachesEverythingThatBeginsAfterIt(t *testing.T) {
	show := []string{"sh", "-c", "echo $FROM_CONTAINER $BOTH $API_KEY; pwd"}
	var taken *guestv1.BootConfig
	b := newBox(t, withMain("false"), func(_ *box, boot *guestv1.BootConfig) {
		boot.HoldCommand = true
		taken = boot.CloneVT()
	})
	c := b.dial()
	b.run(request("before", show...))
	taken.Command, taken.Cwd = show, "/tmp"
	env := []string{"BOTH=taken", "API_KEY=canary-of-taken"}
	taken.SecretEnvs = []string{"API_KEY"}
	b.write("hostname", "made-ahead\n")
	b.write("hosts", "127.0.0.1\tlocalhost\n172.18.0.2\tmade-ahead\n172.18.0.3\tnot-made-ahead\n")
	for range 2 { // the second is a repetition after a crash of the daemon
		if err := c.Configure(t.Context(), taken, env, "demo"); err != nil {
			t.Fatal(err)
		}
	}
	if name, hosts := b.file("hostname"), b.file("hosts"); name != "demo\n" || hosts != "127.0.0.1\tlocalhost\n172.18.0.2\tdemo\n172.18.0.3\tnot-made-ahead\n" {
		t.Errorf("it is called %q, and knows %q", name, hosts)
	}
	b.run(request("after", show...))
	if err := c.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Configure(t.Context(), taken, env, ""); err != nil {
		t.Errorf("the same configuration is refused once the command runs: %v", err)
	}
	if err := c.Configure(t.Context(), taken, []string{"BOTH=of-a-newer-daemon"}, ""); err != nil {
		t.Errorf("a daemon that derives another configuration loses the sandbox: %v", err)
	}
	b.run(request("later", show...))
	main := c.MainExecID()
	b.end(main)
	b.stop()
	for id, want := range map[string]string{"before": "yes container canary-of-container\n/\n", "after": "yes taken ***\n/\n", "later": "yes taken ***\n/\n", main: "yes taken ***\n/tmp\n"} {
		if got := b.stdout(id); got != want {
			t.Errorf("%s wrote %q, want %q", id, got, want)
		}
	}
}
