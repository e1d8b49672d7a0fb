package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dockercontainer "github.com/docker/docker/api/types/container"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// stubborn ignores SIGTERM, and so do a child and a grandchild in other sessions whose
// parents have ended.
const stubborn = `trap "" TERM
(setsid sh -c '(setsid sh -c "echo grandchild; while :; do sleep 7771; done" &); echo child; while :; do sleep 7772; done' &)
echo leader
while :; do sleep 7773; done`

var stubbornSleeps = regexp.MustCompile(`\b777[123]\b`)

// left counts how often the sleeps of stubborn are in command lines of existing
// processes: 9 times while all of it runs.
func (in *install) left(t *testing.T, box string) int {
	t.Helper()
	lines := in.Agbox(t, "exec", box, "--", "sh", "-c", `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n'`).Stdout
	return len(stubbornSleeps.FindAllString(lines, -1))
}

func TestKillEndsEverythingAlsoWhatHasHidden(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	for _, grace := range []string{"", "0s", "1s"} {
		job := in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", stubborn)
		follower := in.Start(t, "logs", "-f", job)
		for _, who := range []string{"leader\n", "\nchild\n", "grandchild\n"} {
			follower.AwaitOutput(t, strings.TrimPrefix(who, "\n"))
		}
		harness.Eventually(t, "all of it runs", func() bool { return in.left(t, "demo") == 9 })
		args := []string{"kill", job}
		if grace != "" {
			args = append(args, "--grace", grace)
		}
		begun := time.Now()
		in.Must(t, args...)
		follower.Wait(t).Want(t, 0)
		took := time.Since(begun)
		e := in.inspectExec(t, job)
		if e.GetState() != agboxv1.ExecState_EXEC_STATE_CANCELLED || e.GetErrorCode() != "CANCELLED_BY_REQUEST" || e.GetSignal() != 9 {
			t.Errorf("grace %q: inspect shows %v", grace, e)
		}
		harness.Eventually(t, "nothing of it is left", func() bool { return in.left(t, "demo") == 0 })
		t.Logf("grace %q: the command was recorded as ended after %v, and all of it was gone after %v", grace, took, time.Since(begun))
	}
}

func TestATimeoutEndsACommandWithItsOwnExitCode(t *testing.T) {
	for _, who := range accounts(t) {
		t.Run("as "+who.name, func(t *testing.T) {
			t.Parallel()
			in := newInstall(t, as(who))
			in.Create(t, "demo", harness.ImageBusybox)
			long := in.Agbox(t, "exec", "--timeout", "300ms", "--name", "long", "demo", "--", "sh", "-c", "echo begun; exec sleep 1000").Want(t, 124)
			// It may be ended before this output.
			const begun = "begun\n"
			if !strings.HasPrefix(begun, long.Stdout) || !strings.Contains(long.Stderr, "timeout of 300ms.") {
				t.Errorf("it says %q and %q", long.Stdout, long.Stderr)
			}
			e := in.inspectExec(t, "demo/long")
			if e.GetState() != agboxv1.ExecState_EXEC_STATE_CANCELLED || e.GetErrorCode() != "EXEC_TIMEOUT" || e.GetSignal() != 15 || e.GetExitCode() != 143 {
				t.Errorf("inspect shows %v", e)
			}
			if ran := e.GetFinishedAt().AsTime().Sub(e.GetStartedAt().AsTime()); ran < 300*time.Millisecond {
				t.Errorf("it ran for %v only", ran)
			}
			// While it writes it is not idle, however long it runs. Then it stops
			// writing.
			quiet := in.Agbox(t, "exec", "--idle-timeout", "1s", "--name", "quiet", "demo", "--", "sh", "-c",
				"for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.25; done; exec sleep 1000").Want(t, 124)
			// On a busy machine it may be silent between two lines.
			const counted = "1\n2\n3\n4\n5\n6\n7\n8\n"
			if !strings.HasPrefix(counted, quiet.Stdout) || !strings.Contains(quiet.Stderr, "idle timeout of 1s.") {
				t.Errorf("it says %q and %q", quiet.Stdout, quiet.Stderr)
			}
			e = in.inspectExec(t, "demo/quiet")
			if e.GetErrorCode() != "EXEC_IDLE_TIMEOUT" || e.GetIdleTimeout().AsDuration() != time.Second {
				t.Errorf("inspect shows %v", e)
			}
			if silence := in.longestSilence(t, e); silence < time.Second {
				t.Errorf("it was ended though it was silent for %v at most, and said %q", silence, quiet.Stdout)
			}
			// A command within its limits is not affected.
			in.Agbox(t, "exec", "--timeout", "1h", "--idle-timeout", "1h", "demo", "--", "sh", "-c", "exit 5").Want(t, 5)
			table := in.Must(t, "ps", "-a", "demo")
			if !strings.Contains(table, "cancelled (timeout)") || !strings.Contains(table, "cancelled (idle timeout)") {
				t.Errorf("ps -a shows\n%s", table)
			}
			refused(t, in.Agbox(t, "exec", "--timeout", "0s", "demo", "--", "true"), 125, "--timeout")
		})
	}
}

// longestSilence returns the longest time in which an exec wrote nothing. It need not be
// the last one: a last line may come between the decision to end the exec and its end.
func (in *install) longestSilence(t *testing.T, e *agboxv1.ExecStatus) time.Duration {
	t.Helper()
	longest, last := time.Duration(0), e.GetStartedAt().AsTime()
	wrote := func(at time.Time) { longest, last = max(longest, at.Sub(last)), at }
	for line := range strings.Lines(in.Must(t, "logs", "-t", e.GetExecId())) {
		stamp, _, _ := strings.Cut(line, " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			t.Fatal(err)
		}
		wrote(at)
	}
	wrote(e.GetFinishedAt().AsTime())
	return longest
}

func TestTimeoutsFireWhileNoDaemonRuns(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	// It stops writing when the gate is opened.
	const silent = "trap '' TERM; while [ ! -e /var/log/agents-sandbox/gate ]; do echo; usleep 50000; done; while :; do sleep 1000; done"
	jobs := map[string]string{
		"EXEC_IDLE_TIMEOUT": in.Must(t, "exec", "-d", "--idle-timeout", "10s", "--grace", "200ms", "demo", "--", "sh", "-c", silent),
	}
	// Nothing must delay the time from its start to the kill.
	c, kill := in.Client(t), in.AimAtDaemon(t)
	limited, err := c.CreateExec(harness.Bounded(t), &agboxv1.CreateExecRequest{
		SandboxId: box, Command: []string{"sleep", "1000"}, Timeout: durationpb.New(10 * time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	kill()
	killed := time.Now()
	jobs["EXEC_TIMEOUT"] = limited.GetExecId()
	openGate(t, gateOf(in, box))
	for _, id := range jobs {
		in.awaitStatus(t, box, id)
	}
	in.Must(t, "daemon", "start")
	back := in.Status(t).StartedAt
	for reason, id := range jobs {
		in.Agbox(t, "logs", "-f", id).Want(t, 0)
		e := in.inspectExec(t, id)
		if e.GetState() != agboxv1.ExecState_EXEC_STATE_CANCELLED || e.GetErrorCode() != reason || !strings.Contains(e.GetError(), "10s.") {
			t.Errorf("%s: inspect shows %v", reason, e)
		}
		if at := e.GetFinishedAt().AsTime(); !at.After(killed) || !at.Before(back) {
			t.Errorf("%s: it ended at %v, want it between %v and %v, while no daemon ran", reason, at, killed, back)
		}
	}
}

// limitMemory gives a running container no more memory than this, and no swap.
func limitMemory(t *testing.T, container string, bytes int64) {
	t.Helper()
	_, err := harness.DockerAPI.ContainerUpdate(harness.Bounded(t), container, dockercontainer.UpdateConfig{
		Resources: dockercontainer.Resources{Memory: bytes, MemorySwap: bytes},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestWantOfMemoryIsSaid(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	limitMemory(t, in.primary(t, box).ID, 64<<20)
	// tail keeps a line that does not end.
	const greedy = "tail -n 1 </dev/zero"
	leader := in.Agbox(t, "exec", "--name", "leader", "demo", "--", "sh", "-c", "exec "+greedy).Want(t, 137)
	if !strings.Contains(leader.Stderr, "memory") {
		t.Errorf("agbox says %q", leader.Stderr)
	}
	in.Agbox(t, "exec", "--name", "child", "demo", "--", "sh", "-c", greedy+"; echo survived; exit 4").Want(t, 4)
	for name, code := range map[string]int32{"leader": 137, "child": 4} {
		e := in.inspectExec(t, "demo/"+name)
		if !e.GetOomKilled() || e.GetState() != agboxv1.ExecState_EXEC_STATE_FINISHED || e.GetExitCode() != code || !strings.Contains(e.GetError(), "memory") {
			t.Errorf("%s: inspect shows %v", name, e)
		}
		if peak := e.GetPeakMemoryBytes(); peak < 32<<20 || peak > 80<<20 {
			t.Errorf("%s: the peak is %d", name, peak)
		}
	}
	in.Agbox(t, "exec", "--name", "modest", "demo", "--", "true").Want(t, 0)
	if e := in.inspectExec(t, "demo/modest"); e.GetOomKilled() || e.GetUserTime() == nil {
		t.Errorf("modest: inspect shows %v", e)
	}
	if table := in.Must(t, "ps", "-a", "demo"); strings.Count(table, "(out of memory)") != 2 || !strings.Contains(table, "MiB") {
		t.Errorf("ps -a shows\n%s", table)
	}
}

func TestOutputBeyondTheCapIsCountedAndSaid(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	const script = "i=0; while [ $i -lt 1000 ]; do echo 123456789; echo 12345 >&2; i=$((i+1)); done; exit 3"
	r := in.Agbox(t, "exec", "--max-log", "4k", "--name", "cut", "demo", "--", "sh", "-c", script).Want(t, 3)
	if len(r.Stdout) != 4096 || !strings.Contains(r.Stderr, "were dropped") {
		t.Errorf("%d bytes came, and agbox says %q", len(r.Stdout), harness.Clip(r.Stderr))
	}
	e := in.inspectExec(t, "demo/cut")
	if e.GetStdoutBytes() != 4096 || e.GetStdoutDroppedBytes() != 10000-4096 || e.GetStderrBytes() != 4096 ||
		e.GetStderrDroppedBytes() != 6000-4096 || e.GetMaxLogBytes() != 4096 {
		t.Errorf("inspect shows %v", e)
	}
	if table := in.Must(t, "ps", "-a", "demo"); !strings.Contains(table, "finished (log cut)") {
		t.Errorf("ps -a shows\n%s", table)
	}
}

func TestTheDaemonsSettingsBoundTheOutputOfASandbox(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.configure(t, "# ours\nmax-exec-log: 10k\nmax-sandbox-log: 25k\n")
	in.Create(t, "demo", harness.ImageBusybox) // starts the daemon, which reads the file by itself
	kept := uint64(0)
	for i := range 4 {
		name := fmt.Sprintf("j%d", i)
		in.Agbox(t, "exec", "--name", name, "demo", "--", "sh", "-c", "head -c 20000 /dev/zero | tr '\\0' x").Want(t, 0)
		e := in.inspectExec(t, "demo/"+name)
		if e.GetStdoutBytes() > 10<<10 || e.GetStdoutBytes()+e.GetStdoutDroppedBytes() != 20000 {
			t.Errorf("inspect shows %v", e)
		}
		kept += e.GetStdoutBytes()
	}
	if kept < 20<<10 || kept > 25<<10 {
		t.Errorf("%d bytes are kept in all, want about the 25 KiB of the sandbox and no more", kept)
	}
}

func TestADaemonWithAWrongFileSaysWhatIsWrongInIt(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.configure(t, "resync: 10s\nkeep-exec: 1h\n")
	r := in.Agbox(t, "daemon", "start").Want(t, 5)
	if !strings.Contains(r.Stderr, "Line 2: There is no setting \"keep-exec\"") || !strings.Contains(r.Stderr, "agboxd.yaml") {
		t.Errorf("agbox says\n%s", r.Stderr)
	}
	in.configure(t, "keep-execs: 1h\n")
	shown := in.StartBinary(t, "agboxd", "config", "--max-execs", "5").Wait(t).Want(t, 0).Stdout
	if !strings.Contains(shown, "keep-execs: 1h # file\n") || !strings.Contains(shown, "max-execs: 5 # flag\n") {
		t.Errorf("agboxd config shows\n%s", shown)
	}
}
