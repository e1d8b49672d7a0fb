package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// spawn starts an agent with a shell script and returns its id.
func spawn(t *testing.T, in *harness.Install, script string, flags ...string) string {
	t.Helper()
	args := append([]string{"agent", "spawn"}, flags...)
	return in.Must(t, append(args, "--", "sh", "-c", script)...)
}

// await waits until the agent has ended and checks its state.
func await(t *testing.T, in *harness.Install, id, want string) *agboxv1.Agent {
	t.Helper()
	a, err := in.Client(t).WaitAgent(harness.Bounded(t), awaitNamed(t, in, id))
	if err != nil {
		t.Fatal(err)
	}
	if a.GetWord() != want {
		t.Fatalf("the agent is %s (%s); want %s", a.GetWord(), a.GetMessage(), want)
	}
	return a
}

// running waits until the incarnation with that number works.
func running(t *testing.T, in *harness.Install, id string, incarnation uint32) {
	t.Helper()
	for ev, err := range in.Client(t).WatchAgents(harness.Bounded(t), awaitNamed(t, in, id), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetIncarnation() == incarnation && ev.GetState() == agboxv1.AgentState_AGENT_STATE_EXECUTING {
			return
		}
	}
}

// history lists what happened to an agent: types, pause reasons and kinds of ends.
func history(t *testing.T, c *client.Client, id string) []string {
	t.Helper()
	r, err := c.Resolve(harness.Bounded(t), agboxv1.RefKind_REF_KIND_AGENT, id)
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.GetAgent(harness.Bounded(t), r.GetId())
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for ev, err := range c.WatchAgents(harness.Bounded(t), a.GetAgentId(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		word := strings.TrimPrefix(ev.GetType().String(), "AGENT_")
		if p := ev.GetPause(); p != nil {
			word += " " + strings.TrimPrefix(p.GetReason().String(), "PAUSE_REASON_")
		}
		if e := ev.GetEnd(); e != nil {
			word += " " + strings.TrimPrefix(e.GetKind().String(), "INCARNATION_END_KIND_")
		}
		if c := ev.GetGauge().GetContext(); c != 0 {
			word += " " + strings.TrimPrefix(c.String(), "AGENT_CONTEXT_")
		}
		words = append(words, word)
		if ev.GetSequence() >= a.GetLastSequence() {
			break
		}
	}
	return words
}

func wantHistory(t *testing.T, in *harness.Install, id, want string) {
	t.Helper()
	if got := strings.Join(history(t, in.Client(t), id), ", "); got != want {
		t.Errorf("history: %s\nwant:    %s", got, want)
	}
}

func TestAProgramThatExitsWithZeroCompletesItsAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `echo "$AGBOX_AGENT $AGBOX_AGENT_ID $AGBOX_INCARNATION $AGBOX_ATTEMPT $AGBOX_CLASS $AGBOX_MODEL $X"`,
		"fixer", "--in", "demo", "--class", "coder", "--model", "m-1", "--agent-env", "X=y")
	a := await(t, in, id, "COMPLETED")
	if a.GetSandboxId() != box || a.GetOwned() {
		t.Errorf("it ran in %s, owned %v; want %s, not owned", a.GetSandboxId(), a.GetOwned(), box)
	}
	harness.WantSame(t, "output", in.Must(t, "agent", "logs", "fixer"), "fixer "+id+" 1 1 coder m-1 y")
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, INCARNATION_ENDED EXITED, ENDED")
	in.Must(t, "agent", "rm", "fixer")
	in.Agbox(t, "agent", "inspect", "fixer").Want(t, 3)
	if out := in.Must(t, "ls", "-q"); out != box {
		t.Errorf("the removal of the agent left the sandboxes %q; want its sandbox, which is not its own", out)
	}
}

func TestACrashIsRetriedUntilTheSameErrorCameThreeTimes(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `echo "run $AGBOX_INCARNATION after $AGBOX_PREVIOUS_EXIT_CODE"; echo looking >&2; echo "no such file 0x$$" >&2; exit 4`,
		"--in", "demo", "--retry-delay", "10ms")
	a := await(t, in, id, "DEAD_LETTER")
	if a.GetCrashes() != 3 || !strings.HasPrefix(a.GetMessage(), "Deterministic crash: same error on 3 attempts") {
		t.Errorf("%d crashes: %s", a.GetCrashes(), a.GetMessage())
	}
	harness.WantSame(t, "output", in.Must(t, "agent", "logs", id), "run 1 after \nrun 2 after 4\nrun 3 after 4")
	if end := a.GetLastEnd(); !strings.HasPrefix(end.GetErrorMessage(), "no such file 0x") || end.GetErrorStack() != "looking\n"+end.GetErrorMessage() {
		t.Errorf("its last end has the error %q and the stack %q", end.GetErrorMessage(), end.GetErrorStack())
	}
	in.Agbox(t, "agent", "wait", id).Want(t, 1)
}

func TestAnAgentIsRevivedAfterTheLossOfItsContainer(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `echo "run $AGBOX_INCARNATION"; [ $AGBOX_INCARNATION = 2 ] || sleep 1000`, "--in", "demo")
	running(t, in, id, 1)
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), runtime.PrimaryName(box), "KILL"); err != nil {
		t.Fatal(err)
	}
	a := await(t, in, id, "COMPLETED")
	if a.GetCrashes() != 0 {
		t.Errorf("the loss of the container counts as %d crashes", a.GetCrashes())
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, INCARNATION_ENDED LOST, PAUSED ORPHANED, BEGUN, RESUMED, INCARNATION_ENDED EXITED, ENDED")
}

func TestAnOrphanedAgentWaitsForADecision(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	script := `[ $AGBOX_INCARNATION = 2 ] || sleep 1000`
	for _, name := range []string{"kept", "dropped"} {
		spawn(t, in, script, name, "--in", "demo", "--on-loss", "ask")
		running(t, in, name, 1)
	}
	early := in.Agbox(t, "agent", "resolve", "--revive", "kept").Want(t, 4)
	if !strings.Contains(early.Stderr, "is EXECUTING, and only an ORPHANED agent can be resolved; \"agbox agent kill ") {
		t.Errorf("a decision too early is refused with %q", early.Stderr)
	}
	in.Agbox(t, "agent", "resolve", "kept").Want(t, 2)
	in.Agbox(t, "agent", "resolve", "--revive", "--reap", "kept").Want(t, 2)
	in.Agbox(t, "agent", "resolve", "--reap", "nobody").Want(t, 3)
	waiters := []*harness.Process{
		in.Start(t, "agent", "wait", "kept"), in.Start(t, "agent", "wait", "--tree", "kept"), in.Start(t, "agent", "logs", "-f", "kept"), in.Start(t, "agent", "attach", "-q", "kept"),
	}
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), runtime.PrimaryName(box), "KILL"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "dropped"} {
		harness.Eventually(t, "the agent waits", func() bool {
			return strings.Contains(in.Must(t, "agent", "inspect", name), "ORPHANED")
		})
	}
	waiters = append(waiters, in.Start(t, "agent", "wait", "kept"))
	for _, w := range waiters {
		harness.Eventually(t, "those who wait are told of it", func() bool {
			return strings.Contains(w.Stderr.String(), "agbox: Agent kept is ORPHANED: ") && strings.Contains(w.Stderr.String(), " To decide: agbox agent resolve {--revive | --reap} kept\n")
		})
	}
	if said := in.Agbox(t, "doctor").Stdout; strings.Count(said, "It is ORPHANED and waits for a decision") != 2 {
		t.Errorf("doctor says\n%s", said)
	}
	stray := filepath.Join(in.Home, "data", "agents", "nobody", "meta.json")
	if err := os.MkdirAll(filepath.Dir(stray), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stray, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	reaped := in.Must(t, "agent", "reap")
	if strings.Count(reaped, "is ORPHANED and waits for a decision: agbox agent resolve {--revive | --reap} ") != 2 || !strings.Contains(reaped, "Agents looked at: 2.") {
		t.Errorf("agent reap says\n%s", reaped)
	}
	if _, err := os.Stat(stray); err == nil {
		t.Error("the file of an agent that is not known stays")
	}
	in.Must(t, "agent", "resolve", "--revive", "kept")
	in.Must(t, "agent", "resolve", "--reap", "dropped")
	await(t, in, "kept", "COMPLETED")
	for _, w := range waiters {
		if done := w.Wait(t).Want(t, 0); strings.Count(done.Stderr, "ORPHANED") != 1 {
			t.Errorf("it was told %q; want one note", done.Stderr)
		}
	}
	wantHistory(t, in, "kept", "SPAWNED, BEGUN, PHASE, PHASE, INCARNATION_ENDED LOST, PAUSED ORPHANED, WOKEN, BEGUN, RESUMED, INCARNATION_ENDED EXITED, ENDED")
	if a := await(t, in, "dropped", "ABORTED"); !strings.Contains(a.GetMessage(), "A user decided to reap it") {
		t.Errorf("the reaped agent says %q", a.GetMessage())
	}
	wantHistory(t, in, "dropped", "SPAWNED, BEGUN, PHASE, PHASE, INCARNATION_ENDED LOST, PAUSED ORPHANED, ENDED")
	late := in.Agbox(t, "agent", "resolve", "--reap", "dropped").Want(t, 4)
	if !strings.Contains(late.Stderr, "is ABORTED, and only an ORPHANED agent can be resolved; spawn a new agent") {
		t.Errorf("a decision too late is refused with %q", late.Stderr)
	}
}

// TestAWaitForATreeTellsOfAllThatAreOrphaned, also of one that was spawned while it waited.
func TestAWaitForATreeTellsOfAllThatAreOrphaned(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	planner := spawn(t, in, gated+`[ $AGBOX_INCARNATION = 2 ] && agbox-agent done complete && exit
		kid() { agbox-agent spawn --name $1 --class worker -- sh -c '[ $AGBOX_INCARNATION = 2 ] || sleep 1000'; }
		kid early; pass 1; kid late; sleep 1000`, "planner", "--in", "demo", "--on-loss", "ask", "--may-spawn", "worker")
	running(t, in, "early", 1)
	waiters := []*harness.Process{in.Start(t, "agent", "wait", "--tree", planner)}
	open(t, in, box, 1)
	running(t, in, "late", 1)
	if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), runtime.PrimaryName(box), "KILL"); err != nil {
		t.Fatal(err)
	}
	names := []string{"planner", "early", "late"}
	for _, name := range names {
		becomes(t, in, name, "ORPHANED")
	}
	waiters = append(waiters, in.Start(t, "agent", "wait", "--tree", planner))
	notes := func(w *harness.Process) (n int) {
		for _, name := range names {
			n += strings.Count(w.Stderr.String(), " To decide: agbox agent resolve {--revive | --reap} "+name+"\n")
		}
		return n
	}
	for _, w := range waiters {
		harness.Eventually(t, "it tells of all", func() bool { return notes(w) == len(names) })
	}
	in.Must(t, append([]string{"agent", "resolve", "--revive"}, names...)...)
	for _, w := range waiters {
		if done := w.Wait(t).Want(t, 0); notes(w) != len(names) || strings.Count(done.Stderr, "ORPHANED") != len(names) {
			t.Errorf("it was told %q; want a note for each", done.Stderr)
		}
	}
}

func TestAnAgentGoesOnThroughKillsOfTheDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `[ $AGBOX_INCARNATION = 3 ] && exit 0; sleep 0.2; echo $AGBOX_INCARNATION >&2; exit 7`, "--in", "demo", "--retry-delay", "200ms")
	for range 6 {
		in.KillDaemon(t)
		in.Must(t, "agent", "ls")
	}
	a := await(t, in, id, "COMPLETED")
	if a.GetCrashes() != 2 || a.GetIncarnation() != 3 {
		t.Errorf("%d crashes, %d incarnations; want 2 and 3", a.GetCrashes(), a.GetIncarnation())
	}
	harness.WantSame(t, "errors", in.Agbox(t, "agent", "logs", id).Want(t, 0).Stderr, "1\n2\n")
}

func TestAStopOfTheSandboxIsNoCrash(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `[ $AGBOX_INCARNATION = 2 ] && exit 0; trap "exit 9" TERM; echo up; while :; do sleep 0.1; done`, "--in", "demo")
	harness.Eventually(t, "the trap is set", func() bool { return in.Must(t, "agent", "logs", id) == "up" })
	in.Must(t, "stop", "demo")
	harness.Eventually(t, "the agent waits", func() bool {
		return strings.Contains(in.Must(t, "agent", "inspect", id), "pause_reason: DRAINED")
	})
	in.Must(t, "start", "demo")
	if a := await(t, in, id, "COMPLETED"); a.GetCrashes() != 0 {
		t.Errorf("a stop counts as %d crashes", a.GetCrashes())
	}
}

func TestAKillEndsTheAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for _, row := range []struct {
		script string
		flags  []string
		code   int32
	}{
		{"sleep 1000", nil, 143},
		{`trap "" TERM; while :; do sleep 1; done`, []string{"--now"}, 137},
	} {
		id := spawn(t, in, row.script, "--in", "demo")
		running(t, in, id, 1)
		in.Must(t, append([]string{"agent", "kill", id}, row.flags...)...)
		a := await(t, in, id, "ABORTED")
		if got := a.GetLastEnd().GetExitCode(); got != row.code {
			t.Errorf("kill %v ended %q with %d; want %d", row.flags, row.script, got, row.code)
		}
	}
	waiting := spawn(t, in, "exit 1", "--in", "demo", "--retry-delay", "1h")
	harness.Eventually(t, "the agent waits", func() bool { return strings.Contains(in.Must(t, "agent", "inspect", waiting), "RETRYING") })
	in.Must(t, "agent", "kill", waiting)
	await(t, in, waiting, "ABORTED")
}

func TestASandboxWithAgentsIsRemovedOnlyByForce(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, "exit 1", "fixer", "--in", "demo", "--retry-delay", "1h")
	harness.Eventually(t, "the agent waits", func() bool { return strings.Contains(in.Must(t, "agent", "inspect", id), "RETRYING") })
	in.Must(t, "exec", "-d", "demo", "--", "sleep", "1000") // agents come first
	for _, args := range [][]string{{"rm", "demo"}, {"rm", "--label", "team=a", "demo"}} {
		r := in.Agbox(t, args...).Want(t, 4)
		if !strings.Contains(r.Stderr, "agents that have not ended: fixer. End them with") {
			t.Errorf("%v is refused with %q", args, r.Stderr)
		}
	}
	if out := in.Must(t, "ls", "-q"); out != box {
		t.Fatalf("after the refusal the sandboxes are %q", out)
	}
	in.Must(t, "rm", "-f", "demo")
	if a := await(t, in, id, "FAILED"); a.GetMessage() != "Its sandbox was deleted." {
		t.Errorf("the agent says %q", a.GetMessage())
	}
	in.Create(t, "other", harness.ImageBusybox)
	await(t, in, spawn(t, in, "true", "--in", "other"), "COMPLETED")
	in.Must(t, "rm", "other")
}

func TestTheSandboxThatWasMadeForAnAgentGoesAfterIt(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	id := in.Must(t, "agent", "spawn", "--image", harness.ImageBusybox, "--", "true")
	a := await(t, in, id, "COMPLETED")
	if !a.GetOwned() {
		t.Fatal("the sandbox is not its own")
	}
	in.Agbox(t, "inspect", a.GetSandboxId()).Want(t, 0)
	in.Must(t, "agent", "rm", id)
	harness.Eventually(t, "the sandbox is removed", func() bool { return in.Must(t, "ls", "-q") == "" })
}

func TestTheSandboxOfAnAgentThatHasEndedIsRemovedInTime(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	ctx := harness.Bounded(t)
	a, err := in.Client(t).SpawnAgent(ctx, &agboxv1.SpawnAgentRequest{
		Spec:    &agboxv1.AgentSpec{Command: []string{"false"}, CleanupAfter: durationpb.New(0), Retry: &agboxv1.AgentRetry{Attempts: 1}},
		Sandbox: &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: harness.ImageBusybox}},
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, in, a.GetAgentId(), "DEAD_LETTER")
	if err := in.Client(t).WaitDeleted(ctx, a.GetSandboxId()); err != nil {
		t.Error(err)
	}
}

func TestASpawnCanBeRepeated(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	args := []string{"agent", "spawn", "one", "--in", "demo", "--id", "a-1", "--", "sleep", "1000"}
	for range 2 {
		harness.WantSame(t, "id", in.Must(t, args...), "a-1")
	}
	if got := strings.Count(in.Must(t, "agent", "ls", "-q"), "a-1"); got != 1 {
		t.Errorf("%d agents after a repeated spawn", got)
	}
	in.Agbox(t, "agent", "spawn", "two", "--in", "demo", "--id", "a-1", "--", "true").Want(t, 4)
	in.Agbox(t, "agent", "spawn", "one", "--in", "demo", "--", "true").Want(t, 4)
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for _, row := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"agent", "spawn", "--in", "demo"}, 2, "An agent needs a command: give the program that it runs"},
		{[]string{"agent", "spawn", "--in", "nobody", "--", "true"}, 3, "There is no sandbox"},
		{[]string{"agent", "spawn", "--", "true"}, 2, "Name an image"},
		{[]string{"agent", "spawn", "--in", "demo", "--ready", "soon", "--", "true"}, 2, "--ready soon is not possible"},
		{[]string{"agent", "spawn", "--in", "demo", "--agent-env", "API_TOKEN=x", "--", "true"}, 2, "agent.envs[\"API_TOKEN\"]: The variable \"API_TOKEN\" is a secret"},
		{[]string{"agent", "spawn", "--in", "demo", "--agent-env", "AGBOX_TOKEN=x", "--", "true"}, 2, "choose a name that does not begin with AGBOX_"},
		{[]string{"agent", "spawn", "--image", harness.ImageBusybox, "--env", "AGBOX_AGENT_ID=x", "--", "true"}, 2, "envs[\"AGBOX_AGENT_ID\"]"},
		{[]string{"agent", "inspect", "nobody"}, 3, `There is no agent "nobody"`},
		{[]string{"agent", "kill", "nobody"}, 3, `There is no agent "nobody"`},
		{[]string{"agent", "rm", "nobody"}, 3, `There is no agent "nobody"`},
	} {
		r := in.Agbox(t, row.args...).Want(t, row.code)
		if !strings.Contains(r.Stderr, row.says) {
			t.Errorf("%v says %q; want %q in it", row.args, r.Stderr, row.says)
		}
	}
	id := spawn(t, in, "sleep 1000", "--in", "demo")
	r := in.Agbox(t, "agent", "rm", id).Want(t, 4)
	if want := fmt.Sprintf("agbox agent kill %s", id); !strings.Contains(r.Stderr, want) {
		t.Errorf("the refusal says %q; want the command %q in it", r.Stderr, want)
	}
	in.Must(t, "agent", "rm", "-f", id)
}
