package agents

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// holding is a tool that delivers as that of the documentation, and stands still before and after
// it as long as the file hold-before-STEP or hold-after-STEP exists.
const holding = `#!/bin/sh
hold() { [ ! -e "hold-$1" ] || { touch "held-$1"; while [ -e "hold-$1" ]; do sleep 0.02; done; }; }
[ "$1" != --pause ] || { hold now; exit; }
[ "$1" != --was ] || exec ./document "$@"
hold "before-${1%% *}"
./document "$@"
hold "after-${1%% *}"
`

// hold has the tools of all programs stand still at these places.
func (o office) hold(t *testing.T, places ...string) {
	t.Helper()
	for name := range programs {
		if err := os.MkdirAll(filepath.Join(o.host, name), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, place := range places {
			if err := os.WriteFile(filepath.Join(o.host, name, "hold-"+place), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// held waits until the tools of all programs stand still there.
func (o office) held(t *testing.T, place string) {
	t.Helper()
	for name := range programs {
		harness.Eventually(t, name+" is held "+place, func() bool {
			err := os.Remove(filepath.Join(o.host, name, "held-"+place))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
}

// release lets the tools of all programs go on there.
func (o office) release(t *testing.T, place string) {
	t.Helper()
	for name := range programs {
		if err := os.Remove(filepath.Join(o.host, name, "hold-"+place)); err != nil {
			t.Fatal(err)
		}
	}
}

// kill ends all programs with SIGKILL, and nothing that they have started.
func (o office) kill(t *testing.T, box string) {
	t.Helper()
	for name, command := range programs {
		start := strings.Join(command, "\x00") + "\x00"
		found := harness.ProcessesBeside(harness.PIDInside(harness.Bounded(t), t, box), func(is, _ string) bool { return strings.HasPrefix(is, start) })
		if len(found) != 1 {
			t.Fatalf("%s runs as the processes %v", name, found)
		}
		harness.KillIfAlive(found[0])
	}
}

// count counts the rows of the agent's journals that have all these texts.
func count(t *testing.T, in *harness.Install, name string, texts ...string) (n int) {
	t.Helper()
rows:
	for row := range strings.Lines(in.Must(t, "agent", "journal", name)) {
		for _, text := range texts {
			if !strings.Contains(row, text) {
				continue rows
			}
		}
		n++
	}
	return n
}

func TestTheProgramsOfTheDocumentationGoOnWhateverIsKilled(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	o := openOffice(t, in, "demo")
	box := in.SandboxID(t, "demo")
	const lines = 9
	o.hold(t, "before-2", "after-4", "before-6", "after-7")
	for name := range programs {
		spec := patient()
		spec.Ready = agboxv1.AgentReady_AGENT_READY_REPORT
		o.employ(t, "demo", name, o.all[name], holding, lines, spec)
	}
	o.held(t, "before-2")
	o.kill(t, box) // the call has begun, and has had no effect: it is made again
	o.held(t, "before-2")
	o.release(t, "before-2")

	o.held(t, "after-4")
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), runtime.PrimaryName(box), "KILL"); err != nil {
		t.Fatal(err)
	}
	o.release(t, "after-4") // it has had its effect: it is not made again

	o.held(t, "before-6")
	in.KillDaemon(t) // they go on without it
	o.release(t, "before-6")
	o.held(t, "after-7")
	o.kill(t, box)
	in.Must(t, "daemon", "start")
	o.release(t, "after-7")

	for name := range programs {
		a := await(t, in, name, "COMPLETED")
		o.wantDelivered(t, name, lines)
		if a.GetCrashes() != 2 || a.GetMessage() != fmt.Sprint(lines, " lines are delivered") {
			t.Errorf("%s has crashed %d times and says %q; want 2", name, a.GetCrashes(), a.GetMessage())
		}
		if steps, seen := count(t, in, name, `"op":"step"`), count(t, in, name, `"op":"observed"`); steps != lines || seen != 3 {
			t.Errorf("%s has reported %d steps and taken %d observations; want %d and 3", name, steps, seen, lines)
		}
		for step := range lines {
			want := 1
			if step+1 == 2 {
				want = 0 // as often again, under another id
			}
			if n := count(t, in, name, `"op":"call"`, `"phase":"end"`, fmt.Sprintf(`"invocation":"deliver-%d"`, step+1)); n > want {
				t.Errorf("%s has ended call %d %d times; want at most %d", name, step+1, n, want)
			}
		}
	}
}

// The kill comes after the end of the call and before the checkpoint: what the call gave is taken
// from the journal.
func TestTheProgramsOfTheDocumentationTakeTheResultOfACallThatHasEnded(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	o := openOffice(t, in, "demo")
	o.hold(t, "now")
	pause := map[string][2]string{
		"sh":         {"  echo '{}' | agbox-agent checkpoint", "./deliver --pause\n"},
		"python":     {"    call(\"checkpoint\"", "    subprocess.run([\"./deliver\", \"--pause\"])\n"},
		"javascript": {"    await call(\"checkpoint\"", "    spawnSync(\"./deliver\", [\"--pause\"])\n"},
	}
	for name := range programs {
		text := strings.Replace(o.all[name], pause[name][0], pause[name][1]+pause[name][0], 1)
		if text == o.all[name] {
			t.Fatalf("the program in %s saves no checkpoint as this test expects", name)
		}
		o.employ(t, "demo", name, text, holding, 2, patient())
	}
	o.held(t, "now")
	o.kill(t, in.SandboxID(t, "demo"))
	o.held(t, "now")
	o.release(t, "now")
	for name := range programs {
		await(t, in, name, "COMPLETED")
		o.wantDelivered(t, name, 2)
		harness.WantSame(t, "output of "+name, in.Must(t, "agent", "logs", name), "delivered: 1 line \"1\"\ndelivered: 1 line \"1\"\ndelivered: 2 line \"2\"")
		if n := count(t, in, name, `"op":"call"`, `"phase":"begin"`); n != 2 {
			t.Errorf("%s has begun %d calls; want 2", name, n)
		}
	}
}
