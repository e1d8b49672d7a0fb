package execs

import (
	"cmp"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/daemon/guests/links"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// recordMain does what the loop does when the sandbox is linked.
func (b *bench) recordMain() bool {
	b.t.Helper()
	main := b.runner.Main("a")
	if main == nil {
		return false
	}
	sb, _ := b.ledger.Sandbox("a")
	known, taken, err := b.ledger.AcceptMain(b.t.Context(), sb.Record, nil, main)
	if err != nil || !known || taken {
		b.t.Fatalf("known %v, taken %v, error %v", known, taken, err)
	}
	b.runner.MainRecorded(main, known)
	return true
}

func TestTheMainCommandIsRecordedOnceWithItsEnd(t *testing.T) {
	b := newBench(t)
	// It ended before it could be recorded as running.
	s := &supervisor{boot: "boot1", main: "main-a", start: func(req *guestv1.StartRequest) *guestv1.ExecRecord {
		rec := exited(3)
		rec.ExecId = req.GetExecId()
		return rec
	}}
	b.serve(s)
	b.connect()
	if !b.recordMain() {
		t.Fatal("there is no main command")
	}
	if b.runner.Main("a") != nil {
		t.Error("it is due a second time")
	}
	<-b.ledger.ExecDone("main-a")
	status, err := b.ledger.Exec(t.Context(), "a", "main-a")
	if err != nil || !status.GetMain() || status.GetExitCode() != 3 || status.GetUser() != "agent" || status.GetCwd() != "/work" {
		t.Errorf("status %v, error %v", status, err)
	}
}

func TestAMainCommandOfAnEarlierSupervisorOrWithAForeignIDIsNone(t *testing.T) {
	for _, id := range []string{"", "main", "main-b", "x", "main-a-1"} {
		b := newBench(t)
		b.serve(&supervisor{boot: "boot1", main: id, start: runs("boot1")})
		b.connect()
		if main := b.runner.Main("a"); main != nil {
			t.Errorf("the supervisor's word %q gives %v", id, main.Request)
		}
	}
}

func TestAMainCommandThatItsSupervisorForgotIsNotStarted(t *testing.T) {
	b := newBench(t)
	asked := make(chan struct{}, 1)
	end := b.serve(&supervisor{boot: "boot1", main: "main-a", start: func(req *guestv1.StartRequest) *guestv1.ExecRecord {
		asked <- struct{}{}
		return runs("boot1")(req)
	}})
	b.connect()
	b.recordMain()
	<-asked // the query that follows the recording
	end()
	<-b.lost
	again := &supervisor{boot: "boot1", main: "main-a", start: runs("boot1")}
	b.serve(again)
	b.connect()
	<-b.ledger.ExecDone("main-a")
	status, err := b.ledger.Exec(t.Context(), "a", "main-a")
	if err != nil || status.GetErrorCode() != "EXEC_LOST" || again.started() != 0 {
		t.Errorf("status %v, %d starts, error %v", status, again.started(), err)
	}
}

func TestWhatEndedAnExecIsSaidInASentence(t *testing.T) {
	limits := &agboxv1.CreateExecRequest{Timeout: durationpb.New(90 * time.Second), IdleTimeout: durationpb.New(1500 * time.Millisecond)}
	for name, c := range map[string]struct {
		rec    *guestv1.ExecRecord
		req    *agboxv1.CreateExecRequest
		state  agboxv1.ExecState
		reason string
		says   string
	}{
		"timeout":               {&guestv1.ExecRecord{EndCause: 2, Cancelled: true, Signal: 15}, limits, 4, "EXEC_TIMEOUT", "timeout of 1m30s."},
		"idle timeout":          {&guestv1.ExecRecord{EndCause: 3, Cancelled: true}, limits, 4, "EXEC_IDLE_TIMEOUT", "idle timeout of 1.5s."},
		"a timeout it had not":  {&guestv1.ExecRecord{EndCause: 2}, &agboxv1.CreateExecRequest{}, 4, "EXEC_TIMEOUT", "run for its timeout."},
		"request":               {&guestv1.ExecRecord{EndCause: 1, Cancelled: true}, nil, 4, "CANCELLED_BY_REQUEST", "by request"},
		"stop":                  {&guestv1.ExecRecord{EndCause: 4, Cancelled: true, Signal: 15}, nil, 4, "SANDBOX_STOPPED_UNDER_EXEC", "stopped or removed"},
		"a stop before it ran":  {&guestv1.ExecRecord{Phase: 3, EndCause: 4, Cancelled: true, ExitCode: 143, Failure: 5}, nil, 4, "SANDBOX_STOPPED_UNDER_EXEC", "before the command was started"},
		"no room":               {&guestv1.ExecRecord{Phase: 3, Failure: 6, FailureMessage: "The start cannot be written down."}, nil, 3, "FILE_SYSTEM_FULL", "written down"},
		"no start":              {&guestv1.ExecRecord{Phase: 3, Failure: 5, FailureMessage: "The pipes cannot be made."}, nil, 3, "EXEC_START_FAILED", "pipes"},
		"an old supervisor":     {&guestv1.ExecRecord{Cancelled: true}, nil, 4, "CANCELLED_BY_REQUEST", "by request"},
		"a newer supervisor":    {&guestv1.ExecRecord{EndCause: 17, Cancelled: true}, nil, 4, "CANCELLED_BY_REQUEST", "(17)"},
		"out of memory":         {&guestv1.ExecRecord{OomKilled: true, Signal: 9, ExitCode: 137}, nil, 2, "", "memory ran out"},
		"its own exit":          {&guestv1.ExecRecord{ExitCode: 1}, nil, 2, "", ""},
		"memory, then a cancel": {&guestv1.ExecRecord{EndCause: 1, OomKilled: true}, nil, 4, "CANCELLED_BY_REQUEST", "by request"},
	} {
		rec := c.rec.CloneVT()
		rec.ExecId, rec.Phase = "x", cmp.Or(rec.GetPhase(), guestv1.ExecPhase_EXEC_PHASE_EXITED)
		rec.UserUs, rec.PeakMemoryBytes = 1<<64-1, 5
		ran := rec.GetPhase() == guestv1.ExecPhase_EXEC_PHASE_EXITED
		d := details(rec)
		if strings.HasSuffix(d.GetErrorCode(), "TIMEOUT") {
			d.ErrorMessage = timeoutSentence(d.GetErrorCode(), c.req)
		}
		sentence := d.GetErrorMessage()
		if d.GetExecState() != c.state || d.GetErrorCode() != c.reason || !strings.Contains(sentence, c.says) ||
			sentence != "" && !strings.HasSuffix(sentence, ".") {
			t.Errorf("%s: %v %s %q", name, d.GetExecState(), d.GetErrorCode(), sentence)
		}
		if d.GetOomKilled() != rec.GetOomKilled() || d.GetPeakMemoryBytes() != 5 ||
			d.GetUserTime().IsValid() != ran || ran && d.GetUserTime().AsDuration() <= 0 {
			t.Errorf("%s: what it used is %v", name, d)
		}
	}
}

// timesOut starts an exec with a timeout of 2 s, and returns the supervisor's report
// after the timeout.
func (b *bench) timesOut() *guestv1.ExecRecord {
	b.t.Helper()
	started, err := b.runner.Create(b.t.Context(), &agboxv1.CreateExecRequest{
		SandboxId: "a", ExecId: "x", Command: []string{"sleep"}, Timeout: durationpb.New(2 * time.Second),
	})
	if err != nil {
		b.t.Fatal(err)
	}
	<-started
	rec := exited(143)
	rec.Cancelled, rec.EndCause = true, guestv1.EndCause_END_CAUSE_TIMEOUT
	return rec
}

func TestATimeoutIsRecordedWithItsLimit(t *testing.T) {
	b := newBench(t)
	s := &supervisor{boot: "boot1", start: runs("boot1")}
	b.serve(s)
	b.connect()
	rec := b.timesOut()
	s.exits <- rec
	if st := b.ended(); st.GetErrorCode() != "EXEC_TIMEOUT" || !strings.Contains(st.GetError(), "2s") || st.GetExitCode() != 143 ||
		st.GetTimeout().AsDuration() != 2*time.Second {
		t.Errorf("status %v", st)
	}
}

func TestATimeoutThatIsReportedWhileTheDaemonStopsIsRecordedWithItsLimit(t *testing.T) {
	b := newBench(t)
	b.serve(&supervisor{boot: "boot1", start: runs("boot1")})
	b.connect()
	rec := b.timesOut()
	ctx, stop := context.WithCancel(t.Context())
	stop() // the report has already arrived
	b.runner.record(ctx, &links.Link{SandboxID: "a"}, rec)
	if sentence := b.ended().GetError(); !strings.HasSuffix(sentence, "timeout of 2s.") {
		t.Errorf("the sentence is %q, want the limit in it", sentence)
	}
}

func TestLimitsReachTheSupervisor(t *testing.T) {
	out := startRequest(&agboxv1.CreateExecRequest{
		Timeout: durationpb.New(1500*time.Microsecond + 1), IdleTimeout: durationpb.New(time.Second), MaxLogBytes: 7,
	}, nil)
	if out.GetTimeoutMs() != 2 || out.GetIdleTimeoutMs() != 1000 || out.GetGraceMs() != 5000 || out.GetMaxLogBytes() != 7 {
		t.Errorf("the request is %v", out)
	}
	out = startRequest(&agboxv1.CreateExecRequest{Timeout: durationpb.New(time.Second), Grace: durationpb.New(0)}, nil)
	if out.GetGraceMs() != 0 || out.GetIdleTimeoutMs() != 0 {
		t.Errorf("the request is %v", out)
	}
}

func TestLimitsAreRefusedWhereTheSupervisorKnowsNone(t *testing.T) {
	b := newBench(t)
	s := &supervisor{boot: "boot1", protocol: 1, start: runs("boot1")}
	b.serve(s)
	b.connect()
	_, err := b.runner.Create(t.Context(), &agboxv1.CreateExecRequest{
		SandboxId: "a", ExecId: "x", Command: []string{"sleep"}, IdleTimeout: durationpb.New(time.Second),
	})
	if err == nil || !strings.Contains(err.Error(), "older agbox") || s.started() != 0 {
		t.Errorf("error %v, %d starts", err, s.started())
	}
	b.create() // an exec without limits works as always
}
