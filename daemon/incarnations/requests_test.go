package incarnations

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/internal/fault"
)

// answers are the Execs of a bench that keeps the answers to requests.
type answers struct {
	Execs
	sent []*guestv1.AnswerRequest
	// allotted has the input tokens of which an incarnation was told that children have them.
	allotted []uint64
	// spent has those that ended ones have used.
	spent []uint64
	err   error
}

func (a *answers) Allot(_ context.Context, _ string, req *guestv1.AllotRequest) error {
	if a.err == nil {
		a.allotted, a.spent = append(a.allotted, req.GetChildrenInputTokens()), append(a.spent, req.GetSpentInputTokens())
	}
	return a.err
}

func (a *answers) Answer(_ context.Context, _ string, req *guestv1.AnswerRequest) error {
	if a.err == nil {
		a.sent = append(a.sent, req)
	}
	return a.err
}

// ask tells of requests. All with a body are new; the others are open.
func (b *bench) ask(lk *links.Link, asked ...*guestv1.AgentRequest) {
	news := &guestv1.IncarnationNews{ExecId: "e", Rows: b.rows}
	for _, q := range asked {
		news.OpenRequests = append(news.OpenRequests, q.GetNumber())
		if q.GetJson() != nil {
			news.Requests = append(news.Requests, q)
		}
	}
	b.Told(lk, news)
}

// decided answers the open requests and returns the answers.
// Look finds no file.
func (a *answers) Look(_ context.Context, _, _ string, paths []string) (journal.Seen, error) {
	seen := journal.Seen{Files: make(map[string]journal.File)}
	for _, p := range paths {
		seen.Files[p] = journal.File{}
	}
	return seen, nil
}

func (b *bench) decided(to *answers) []*guestv1.AnswerRequest {
	b.t.Helper()
	to.sent = nil
	if err := b.Answer(b.t.Context(), b.agent()); err != nil {
		b.t.Fatal(err)
	}
	return to.sent
}

func TestRequestsAreDecidedInOrderAndStayOpenUntilThen(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	ready, calls := false, 0
	handlers["test"] = func(_ *Runner, _ context.Context, a ledger.Agent, q request) (any, bool, error) {
		calls++
		var fields struct{ N int }
		if err := q.decode(&fields); err != nil {
			return nil, false, err
		}
		if fields.N == 3 {
			return nil, false, fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_AGENT_NOT_FOUND, "none\xc3") // cut within a rune, which a frame may not carry
		}
		return map[string]any{"n": fields.N, "agent": a.ID}, !ready && fields.N == 1, nil
	}
	defer delete(handlers, "test")
	b.ask(b.link, &guestv1.AgentRequest{Number: 2, Op: "test", Json: []byte(`{"n":2}`)}, &guestv1.AgentRequest{Number: 1, Op: "test", Json: []byte(`{"n":1}`)},
		&guestv1.AgentRequest{Number: 3, Op: "test", Json: []byte(`{"n":3}`)}, &guestv1.AgentRequest{Number: 4, Op: "dance", Json: []byte(`{}`)},
		&guestv1.AgentRequest{Number: 5, Op: "test", Json: []byte(`{"n":"x"}`)})
	if !b.see().Asked || b.enqueued == 0 {
		t.Errorf("seen: %+v, enqueued %d times", b.see(), b.enqueued)
	}
	got := b.decided(to)
	if len(got) != 4 || string(got[0].GetJson()) != `{"agent":"x","n":2}` || got[1].GetCode() != "AGENT_NOT_FOUND" || got[1].GetMessage() != "none\uFFFD" || got[2].GetCode() != "UNKNOWN_OP" || got[3].GetCode() != "INVALID_REQUEST" {
		t.Errorf("answered: %v", got)
	}
	ready = true
	enqueued := b.enqueued
	b.ask(b.link, &guestv1.AgentRequest{Number: 1})
	if b.enqueued != enqueued {
		t.Error("news without a new request enqueue the agent")
	}
	if got := b.decided(to); len(got) != 1 || got[0].GetNumber() != 1 || got[0].GetExecId() != "e" || b.see().Asked {
		t.Errorf("answered later: %v", got)
	}
	if calls != 5 {
		t.Errorf("%d calls", calls)
	}
}

// TestARequestWaitsUntilItCanBeWrittenDown: the disk of the database is full, which the program
// cannot change, and for which it should not have to be prepared.
func TestARequestWaitsUntilItCanBeWrittenDown(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	full := true
	handlers["test"] = func(*Runner, context.Context, ledger.Agent, request) (any, bool, error) {
		if full {
			return nil, false, fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_STORE_FAILED, "No disk space is left.")
		}
		return "done", false, nil
	}
	defer delete(handlers, "test")
	b.ask(b.link, &guestv1.AgentRequest{Number: 1, Op: "test", Json: []byte(`{}`)}, &guestv1.AgentRequest{Number: 2, Op: "children", Json: []byte(`{}`)})
	if err := b.Answer(t.Context(), b.agent()); !errdefs.IsUnavailable(err) || len(to.sent) != 1 || to.sent[0].GetNumber() != 2 || !b.see().Asked {
		t.Errorf("without room: %v; answered: %v", err, to.sent)
	}
	full = false
	if got := b.decided(to); len(got) != 1 || string(got[0].GetJson()) != `"done"` || b.see().Asked {
		t.Errorf("answered later: %v", got)
	}
}

func TestARequestIsForgottenWithItsLinkAndOfferedAgainByTheNext(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	q := &guestv1.AgentRequest{Number: 1, Op: "children", Json: []byte(`{}`)}
	b.ask(b.link, q)
	to.err = errors.New("the link is lost")
	if err := b.Answer(t.Context(), b.agent()); err == nil || !b.see().Asked {
		t.Errorf("an answer that was not sent: %v", err)
	}
	next := &links.Link{SandboxID: "a"}
	b.ask(next, q)
	b.Silent(b.link)
	to.err = nil
	if got := b.decided(to); len(got) != 1 || string(got[0].GetJson()) != `{"children":[]}` {
		t.Errorf("over the next link: %v", got)
	}
	b.ask(next, &guestv1.AgentRequest{Number: 2, Op: "children", Json: []byte(`{}`)})
	b.ask(next)
	if b.see().Asked {
		t.Error("a request that was withdrawn is still open")
	}
	b.ask(&links.Link{SandboxID: "b"}, q)
	if b.see().Asked {
		t.Error("the supervisor of another sandbox is believed")
	}
}

func TestAnAnswerThatIsTooLargeIsRefused(t *testing.T) {
	b, to := newBench(t, &agboxv1.AgentSpec{}), new(answers)
	b.execs = to
	handlers["large"] = func(*Runner, context.Context, ledger.Agent, request) (any, bool, error) {
		return strings.Repeat("x", maxAnswer), false, nil
	}
	t.Cleanup(func() { delete(handlers, "large") })
	b.ask(b.link, &guestv1.AgentRequest{Number: 1, Op: "large", Json: []byte("{}")})
	if got := b.decided(to); len(got) != 1 || got[0].GetCode() != "ANSWER_TOO_LARGE" || len(got[0].GetJson()) != 0 {
		t.Errorf("answered %d times, with %d bytes", len(got), len(got[0].GetJson()))
	}
}

func TestTheDaemonHandlesTheOpsThatAreItsOwn(t *testing.T) {
	for _, op := range slices.Concat(gate.Names(), slices.Collect(maps.Keys(handlers))) {
		if _, handled := handlers[op]; handled != gate.ByDaemon(op) {
			t.Errorf("%s is handled: %v", op, handled)
		}
	}
}
