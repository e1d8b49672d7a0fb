package agents

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// TestAnApprovalComesAfterTheProgramHasEnded pauses an agent until its program is drained for
// idling, stops its sandbox, kills the daemon, and approves then.
func TestAnApprovalComesAfterTheProgramHasEnded(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	c := in.Client(t)
	if _, err := c.SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{SandboxId: box, Spec: &agboxv1.AgentSpec{
		Name: "one", Command: []string{"sh", "-c", willing}, IdleTimeout: durationpb.New(time.Millisecond),
	}}); err != nil {
		t.Fatal(err)
	}
	up(t, in, "one")
	in.Must(t, "agent", "pause", "-m", "look first", "one")
	a, err := c.WaitAgentHalted(harness.Bounded(t), in.AgentID(t, "one"))
	if err != nil || a.GetWord() != "WAITING_FOR_APPROVAL" || a.GetMessage() != "look first" {
		t.Fatalf("the agent is %v, %v", a, err)
	}
	if r := in.Agbox(t, "agent", "resume", "one").Want(t, 4); !strings.Contains(r.Stderr, `"agbox agent approve `) {
		t.Errorf("resume is refused with %q", r.Stderr)
	}
	in.Must(t, "stop", "demo")
	in.KillDaemon(t)
	in.Must(t, "agent", "approve", "one")
	await(t, in, "one", "COMPLETED")
	wantHistory(t, in, "one", "SPAWNED, BEGUN, PHASE, PHASE, PAUSED APPROVAL, INCARNATION_ENDED DRAINED, PAUSED APPROVAL, WOKEN, BEGUN, RESUMED, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
	for _, args := range [][]string{{"agent", "pause", "one"}, {"agent", "deny", "one"}} {
		if r := in.Agbox(t, args...).Want(t, 4); !strings.Contains(r.Stderr, "is COMPLETED and cannot be") {
			t.Errorf("%v is refused with %q", args, r.Stderr)
		}
	}
}

// TestAProgramLearnsWhatChangedBeforeItGoesOn stops a sandbox under an agent whose program
// reports when it is ready. The next program is not ready before it has read what changed.
func TestAProgramLearnsWhatChangedBeforeItGoesOn(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	if _, err := in.Client(t).SpawnAgent(harness.Bounded(t), &agboxv1.SpawnAgentRequest{SandboxId: box, Spec: &agboxv1.AgentSpec{
		Name: "one", Ready: agboxv1.AgentReady_AGENT_READY_REPORT, Command: []string{"sh", "-c", `
			agbox-agent state HYDRATING
			if [ "$AGBOX_INCARNATION" = 1 ]; then
				[ -z "$AGBOX_OBSERVATION" ] && agbox-agent state READY && echo up
				while agbox-agent drained > /dev/null; do sleep 0.02; done; exit
			fi
			agbox-agent state READY; echo "refused with $?"
			cat "$AGBOX_OBSERVATION"
			agbox-agent recv --no-wait
			agbox-agent hydrate > h && grep -q '"observation":{"observation":' h && agbox-agent state READY && agbox-agent done complete`},
	}}); err != nil {
		t.Fatal(err)
	}
	up(t, in, "one")
	in.Must(t, "stop", "demo")
	in.Must(t, "start", "demo")
	await(t, in, "one", "COMPLETED")
	out := in.Agbox(t, "agent", "logs", "one").Want(t, 0)
	for _, want := range []string{"refused with 4", `"reason":"DRAINED"`, `"container":"restarted"`, `"kind":"OBSERVATION"`, `"files":[]`, `"left":{"cost_micro_usd":5000000,"input_tokens":500000}`} {
		if !strings.Contains(out.Stdout, want) {
			t.Errorf("the program lacks %s:\n%s", want, out.Stdout)
		}
	}
	wantHistory(t, in, "one", "SPAWNED, BEGUN, PHASE, PHASE, INCARNATION_ENDED DRAINED, PAUSED DRAINED, BEGUN, RESUMED, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
}

// TestAProgramAsksForAnApprovalAndGoesOn has a program wait for a decision while the daemon is
// killed, and take what changed before it goes on.
func TestAProgramAsksForAnApprovalAndGoesOn(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `
		set -e
		echo '{"checkpoint_id":"c","resume_point":"S4","context":{},"intent_backlog":[],"resolution_strategy":"RETRY"}' > digest.json
		`+strings.Replace(snippets(t)["pause"], "number=", "cat observation.json; agbox-agent resumed ok 1 || echo \"without it: $?\"; number=", 1)+`
		agbox-agent escalate "it is done" && agbox-agent pause idle > o
		agbox-agent resumed replan "$(sed 's/.*"observation":\([0-9]*\).*/\1/' o)" || exit 83
		agbox-agent phase EXECUTING && agbox-agent done complete`, "--in", "demo")
	harness.Eventually(t, "it waits for an approval", func() bool {
		return strings.Contains(in.Must(t, "agent", "ls"), "WAITING_FOR_APPROVAL")
	})
	in.KillDaemon(t)
	in.Must(t, "agent", "approve", "-m", "go on", id)
	harness.Eventually(t, "it is idle", func() bool { return strings.Contains(in.Must(t, "agent", "ls"), "IDLE") })
	if mail := in.Must(t, "agent", "inbox", "init"); !strings.Contains(mail, "it is done") {
		t.Errorf("the operator has got %q", mail)
	}
	in.Must(t, "agent", "send", id, "more work")
	await(t, in, id, "COMPLETED")
	out := in.Agbox(t, "agent", "logs", id).Want(t, 0)
	for _, want := range []string{`"approval":"APPROVED","answer":"go on"`, "without it: 4", "EXECUTING", "PLANNING"} {
		if !strings.Contains(out.Stdout, want) {
			t.Errorf("the program lacks %s:\n%s", want, out.Stdout)
		}
	}
	if strings.Contains(out.Stdout, `"container"`) {
		t.Errorf("nothing has changed, but the program was told:\n%s", out.Stdout)
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, CHECKPOINT, PAUSED APPROVAL, WOKEN, RESUMED, PROGRESS, PAUSED IDLE, WOKEN, RESUMED, PHASE, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
}

// TestADrainEndsAWaitForAnApproval drains an agent whose program waits. The decision comes
// later, and the next program begins with the digest.
func TestADrainEndsAWaitForAnApproval(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `
		[ "$AGBOX_INCARNATION" = 2 ] && { agbox-agent hydrate; exec agbox-agent done complete; }
		echo '{"checkpoint_id":"c","resume_point":"S4","context":{"n":7},"intent_backlog":[],"resolution_strategy":"RETRY"}' | agbox-agent checkpoint --kind pause || exit 80
		agbox-agent pause approval; [ $? = 75 ] && echo "told to drain"`, "--in", "demo")
	harness.Eventually(t, "it waits for an approval", func() bool {
		return strings.Contains(in.Must(t, "agent", "ls"), "WAITING_FOR_APPROVAL")
	})
	in.Must(t, "stop", "demo")
	in.Must(t, "agent", "approve", id)
	await(t, in, id, "COMPLETED")
	out := in.Must(t, "agent", "logs", id)
	for _, want := range []string{"told to drain", `"state":{"checkpoint_id":"c"`, `"approval":"APPROVED"`, `"container":"restarted"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the programs lack %s:\n%s", want, out)
		}
	}
}

// TestAnObservationNamesExactlyWhatChanged changes, deletes and leaves files that an agent
// holds, ends a service and changes a limit while the agent waits for an approval.
func TestAnObservationNamesExactlyWhatChanged(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Must(t, "daemon", "start")
	c := in.Client(t)
	created, err := c.CreateSandbox(harness.Bounded(t), &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("name: demo\nimage: " + harness.ImageBusybox + `
services:
  - {name: db, image: ` + harness.ImageBusybox + `, command: [sleep, "1000000"]}
  - {name: web, image: ` + harness.ImageBusybox + `, command: [sleep, "1000000"]}
`)})
	if err != nil {
		t.Fatal(err)
	}
	box := created.GetSandboxId()
	if _, err := c.WaitReady(harness.Bounded(t), box); err != nil {
		t.Fatal(err)
	}
	id := spawn(t, in, `
		set -e
		for f in changed deleted left; do echo old > /tmp/$f; done
		agbox-agent acquire file:/tmp/changed file:/tmp/deleted file:/tmp/left file:/tmp/own
		echo mine > /tmp/own
		agbox-agent pause approval > o
		cat o
		! agbox-agent resumed ok 1 || exit 80
		agbox-agent phase EXECUTING && exit 81
		number=$(sed 's/.*"observation":\([0-9]*\).*/\1/' o)
		agbox-agent resumed replan "$number"
		! agbox-agent resumed ok "$number" || exit 82
		agbox-agent phase EXECUTING
		agbox-agent done complete`, "--in", "demo")
	until(t, in, id, "it waits for an approval, keeps its leases and has saved no digest", func(a *agboxv1.Agent) bool {
		return a.GetWord() == "WAITING_FOR_APPROVAL" && len(a.GetLeases()) == 4 && a.GetDigestMissing()
	})
	killService(t, in, box, "db")
	if out, err := exec.CommandContext(harness.Bounded(t), "docker", "update", "--pids-limit", "777", runtime.PrimaryName(box)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	in.Must(t, "exec", "demo", "--", "sh", "-c", "echo new > /tmp/changed; rm /tmp/deleted; echo old > /tmp/left; touch /tmp/left")
	in.Must(t, "agent", "approve", id)
	await(t, in, id, "COMPLETED")
	out := in.Must(t, "agent", "logs", id)
	want := `"files":[{"name":"/tmp/changed","what":"changed"},{"name":"/tmp/deleted","what":"deleted"}],"services":[{"name":"db","what":"restarted"}],"limits":[{"name":"pids","before":"4096","now":"777"}],"leases_lost":[],"held_meanwhile":[],`
	if !strings.Contains(out, want) {
		t.Errorf("the program lacks %s:\n%s", want, out)
	}
	if !strings.Contains(out, `"digest_missing":true`) || strings.Contains(out, `"container"`) {
		t.Errorf("the program was told:\n%s", out)
	}
	wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, MANIFEST, GRANTED, PAUSED APPROVAL, WOKEN, RESUMED, RELEASED, PHASE, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
}

// killService ends the container of a service and waits until it was started again.
func killService(t *testing.T, in *harness.Install, box, name string) {
	t.Helper()
	for _, c := range in.Inventory(t).Containers {
		if c.Role != runtime.RoleService || c.Service != name {
			continue
		}
		if err := harness.DockerAPI.ContainerKill(harness.Bounded(t), c.ID, "KILL"); err != nil {
			t.Fatal(err)
		}
	}
	starts := 0
	for ev, err := range in.Client(t).Events(harness.Bounded(t), box, 0) {
		if err != nil {
			t.Fatal(err)
		}
		if ev.GetEventType() == agboxv1.EventType_SANDBOX_SERVICE_STARTED && ev.GetService().GetName() == name {
			if starts++; starts == 2 {
				return
			}
		}
	}
}
