package agents

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

func TestTheReportedOutcomeDecides(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const report = `agbox-agent state HYDRATING && agbox-agent state READY && agbox-agent state EXECUTING || exit 90
		agbox-agent usage 1200 80 0.0125 && agbox-agent step && agbox-agent step && agbox-agent say "half done" || exit 91
		agbox-agent done `
	for _, row := range []struct{ outcome, state, message string }{
		{"complete 'The issue is fixed.'", "COMPLETED", "The issue is fixed."},
		{"abort", "ABORTED", ""},
		{"fail 'There is no such issue.'", "FAILED", "There is no such issue."},
	} {
		id := spawn(t, in, report+row.outcome+" || exit 92; exit 1", "--in", "demo")
		a := await(t, in, id, row.state)
		if a.GetMessage() != row.message || a.GetCrashes() != 0 {
			t.Errorf("done %s: the agent says %q after %d crashes", row.outcome, a.GetMessage(), a.GetCrashes())
		}
		end, p := a.GetLastEnd(), a.GetProgress()
		if end.GetExitCode() != 1 || end.GetLifecycleAtEnd() != agboxv1.AgentLifecycle_AGENT_LIFECYCLE_EXECUTING || !end.GetSpoke() || end.GetStep() != 2 {
			t.Errorf("its incarnation ended as %v", end)
		}
		if u := p.GetTotal(); u.GetInputTokens() != 1200 || u.GetOutputTokens() != 80 || u.GetCostMicroUsd() != 12500 || p.GetSteps() != 2 || p.GetLastMessage() != "half done" {
			t.Errorf("its progress is %v", p)
		}
		wantHistory(t, in, id, "SPAWNED, BEGUN, PHASE, PHASE, PROGRESS, DONE_REPORTED, INCARNATION_ENDED EXITED, ENDED")
	}
}

func TestExitCodeZeroIsNoSuccessOfAProgramThatReports(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `agbox-agent hello`, "--in", "demo", "--retry-delay", "10ms")
	a := await(t, in, id, "DEAD_LETTER")
	if want := "It exited with 0 without reporting an outcome."; !strings.HasSuffix(a.GetMessage(), want) {
		t.Errorf("the agent says %q; want %q", a.GetMessage(), want)
	}
}

// TestTheTokenOfAnIncarnationIsStoredNowhere has a program make reports and requests with its
// token, which it prints backwards.
func TestTheTokenOfAnIncarnationIsStoredNowhere(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `echo "$AGBOX_TOKEN" | rev
		agbox-agent state HYDRATING && agbox-agent usage 5 5 && agbox-agent say hello && agbox-agent send init hello || exit 90
		echo '{"messages":[]}' | agbox-agent checkpoint --step 1 && agbox-agent tool one -- true && agbox-agent acquire db || exit 91
		agbox-agent spawn --class worker --name child -- true && agbox-agent wait child && agbox-agent recv --no-wait || exit 92
		agbox-agent done complete`, "--in", "demo", "--may-spawn", "worker")
	await(t, in, id, "COMPLETED")
	backwards, _, _ := strings.Cut(in.Must(t, "agent", "logs", id), "\n")
	token := []byte(backwards)
	slices.Reverse(token)
	if len(token) < 20 {
		t.Fatalf("the token is %q", token)
	}
	files := 0
	err := filepath.WalkDir(filepath.Join(in.Home, "data"), func(path string, e os.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		content, err := os.ReadFile(path)
		if bytes.Contains(content, token) {
			t.Errorf("the token is in %s", path)
		}
		return err
	})
	if err != nil || files < 10 {
		t.Errorf("%d files, %v", files, err)
	}
	c, err := harness.DockerAPI.ContainerInspect(harness.Bounded(t), runtime.PrimaryName(box))
	if err != nil || strings.Contains(fmt.Sprintf("%+v %+v", c.Config, c.HostConfig), string(token)) {
		t.Errorf("the container has the token, or is not there: %v", err)
	}
}

func TestTheUsageOfAllIncarnationsCountsTowardsTheBudget(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `agbox-agent usage 250000 0; exit $AGBOX_INCARNATION`, "--in", "demo", "--retry-delay", "10ms")
	a := await(t, in, id, "FAILED")
	if a.GetIncarnation() != 2 || !strings.HasPrefix(a.GetMessage(), "Job failed: token budget exhausted (500000 / 500000 input tokens max)") {
		t.Errorf("after %d incarnations: %s", a.GetIncarnation(), a.GetMessage())
	}
}

func TestOnlyTheProgramOfARunningIncarnationCanReport(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox, "--env", "AGBOX_AGENT_SOCKET=/nowhere")
	id := spawn(t, in, `
		AGBOX_TOKEN=forged agbox-agent done complete; [ $? = 3 ] || exit 90
		agbox-agent usage 5 5 || exit 91
		agbox-agent usage 4 5; [ $? = 4 ] || exit 92
		agbox-agent state DRAINING && agbox-agent state EXECUTING; [ $? = 4 ] || exit 93
		agbox-agent api dance '{"x": 1}'; [ $? = 3 ] || exit 94
		agbox-agent done perhaps; [ $? = 4 ] || exit 95
		agbox-agent done; [ $? = 1 ] || exit 96
		env -u AGBOX_TOKEN agbox-agent hello; [ $? = 3 ] || exit 97
		agbox-agent done complete ok`, "--in", "demo")
	await(t, in, id, "COMPLETED")
	errs := in.Agbox(t, "agent", "logs", id).Want(t, 0).Stderr
	for _, want := range []string{
		"The token belongs to no running incarnation", "A usage is the total of this incarnation: it may not go down (it is 5 input tokens",
		`The state "EXECUTING" may not follow DRAINING`, `There is no op "dance"`, `The outcome "perhaps" is none of`, "This is not the program of an agent",
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("the refusals lack %q:\n%s", want, errs)
		}
	}
	// A command beside the agent finds the socket, but has no token.
	in.Agbox(t, "exec", "demo", "--", "sh", "-c",
		"AGBOX_AGENT_SOCKET=/.agbox/run/agent.sock AGBOX_TOKEN=x /.agbox/run/bin/agbox-agent hello").Want(t, 3)
}

func TestAReportOutlivesTheDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "exec-logs", box)
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(folder, name)); return err == nil }
	}
	id := spawn(t, in, `cd /var/log/agents-sandbox; agbox-agent usage 7 8 && touch ready
		while [ ! -e gate ]; do sleep 0.05; done
		agbox-agent usage 9 8 && agbox-agent done complete "all is well" && touch reported; exit 9`, "--in", "demo")
	harness.Eventually(t, "the program works", exists("ready"))
	in.KillDaemon(t)
	if err := os.WriteFile(filepath.Join(folder, "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the outcome is reported without a daemon", exists("reported"))
	in.Must(t, "agent", "ls") // starts the daemon
	a := await(t, in, id, "COMPLETED")
	if u := a.GetProgress().GetTotal(); a.GetMessage() != "all is well" || u.GetInputTokens() != 9 || u.GetOutputTokens() != 8 {
		t.Errorf("the agent says %q, its usage is %v", a.GetMessage(), u)
	}
}

func TestAForgedJournalCostsOnlyItsAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	const file = `j=/var/log/agents-sandbox/$AGBOX_EXEC_ID.journal.jsonl; agbox-agent hello; `
	for _, row := range []struct{ name, forge, state string }{
		{"a link", `rm $j; ln -s /etc/passwd $j`, "DEAD_LETTER"},
		{"a FIFO", `rm $j; mkfifo $j`, "DEAD_LETTER"},
		{"no rows", `head -c 300000 /dev/zero > $j; printf '\n{"op":"done"}\n{"op":"usage","used":{"input_tokens":-1}}\n' >> $j`, "COMPLETED"},
		{"a huge file", `truncate -s 8796093022208 $j 2>/dev/null || truncate -s 1099511627776 $j; :`, "DEAD_LETTER"},
	} {
		id := spawn(t, in, file+row.forge, "--in", "demo", "--retry-delay", "10ms")
		if a := await(t, in, id, row.state); a.GetProgress().GetTotal().GetInputTokens() != 0 {
			t.Errorf("%s: the progress is %v", row.name, a.GetProgress())
		}
	}
	in.Must(t, "exec", box, "--", "true")
}
