package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/review"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/workspace/archive"
)

// advanceStream is a client of AdvanceBase.
type advanceStream struct {
	grpc.ClientStreamingServer[agboxv1.AdvanceBaseRequest, agboxv1.AdvanceBaseResponse]
	t    *testing.T
	sent []*agboxv1.AdvanceBaseRequest
}

func (s *advanceStream) Context() context.Context                        { return s.t.Context() }
func (s *advanceStream) SendAndClose(*agboxv1.AdvanceBaseResponse) error { return nil }
func (s *advanceStream) Recv() (m *agboxv1.AdvanceBaseRequest, err error) {
	if len(s.sent) == 0 {
		return nil, io.EOF
	}
	m, s.sent = s.sent[0], s.sent[1:]
	return m, nil
}

// enqueuing is a loop that notes which agents are looked at.
type enqueuing struct {
	Loop
	agents []string
}

func (l *enqueuing) EnqueueAgent(id string) { l.agents = append(l.agents, id) }

// TestTheAgentOfAKeptSandboxIsLookedAtOnceItsWorkIsHome: a resync looks at 100 of them.
func TestTheAgentOfAKeptSandboxIsLookedAtOnceItsWorkIsHome(t *testing.T) {
	b := newTribe(t)
	book, install := b.calls.ledger, paths.Install{Data: t.TempDir()}
	a, err := book.SpawnAgent(t.Context(), ledger.NewAgent{ID: "ended", SandboxID: "own", Own: &agboxv1.CreateSpec{Image: "img"}, Spec: &agboxv1.AgentSpec{Command: []string{"true"}}})
	if err == nil {
		_, err = book.EmitAgent(t.Context(), a.Record, agents.Reaped("test"))
	}
	if err != nil {
		t.Fatal(err)
	}
	b.spawn("elsewhere", "", "s", true)
	source, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(source)
	r, err := review.RecordBase(install.GuestBase("own"), "w")
	if err != nil {
		t.Fatal(err)
	}
	err = archive.Pack(t.Context(), io.Discard, source, "", archive.PackOptions{Name: "w", Record: r})
	if err := errors.Join(err, r.Finish(review.AboutBase{Source: "/src", Target: "/w"})); err != nil {
		t.Fatal(err)
	}
	loop := new(enqueuing)
	f := fileCalls{ledger: book, loop: loop, paths: install, life: newLifetime()}
	open := &agboxv1.AdvanceBaseOpen{SandboxId: "own", Commit: "1111111111111111111111111111111111111111"}
	err = f.AdvanceBase(&advanceStream{t: t, sent: []*agboxv1.AdvanceBaseRequest{{Item: &agboxv1.AdvanceBaseRequest_Open{Open: open}}}})
	if err != nil || !slices.Equal(loop.agents, []string{"ended"}) {
		t.Errorf("%v: looked at %q", err, loop.agents)
	}
}
