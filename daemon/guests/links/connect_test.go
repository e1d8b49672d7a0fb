package links_test

import (
	"context"
	"testing"

	"github.com/agbox/agbox/daemon/guests/guesttest"
	"github.com/agbox/agbox/daemon/guests/links"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// storyteller is a supervisor that sends the news of one incarnation.
type storyteller struct {
	supervisor
	protocol uint32
	news     *guestv1.IncarnationNews
	// begin holds the news back until it is closed, nil does not.
	begin chan struct{}
	// over ends Follow.
	over chan struct{}
}

func (s storyteller) Hello(context.Context, *guestv1.HelloRequest) (*guestv1.HelloResponse, error) {
	return &guestv1.HelloResponse{Protocol: s.protocol, BootId: "boot"}, nil
}

func (s storyteller) Follow(ctx context.Context, _ *guestv1.FollowRequest, send func(*guestv1.FollowResponse) error) error {
	if s.begin != nil {
		<-s.begin
	}
	if err := send(&guestv1.FollowResponse{News: s.news}); err != nil {
		return err
	}
	select {
	case <-s.over:
	case <-ctx.Done():
	}
	return nil
}

func (s storyteller) methods() rpc.Methods {
	m := s.supervisor.methods()
	m["guest.v1.Supervisor/Hello"] = rpc.Unary(s.Hello)
	m["guest.v1.Agents/Follow"] = rpc.Stream(s.Follow)
	return m
}

// listener keeps what it is told.
type listener struct {
	told   chan *guestv1.IncarnationNews
	silent chan *links.Link
}

func (l listener) Told(_ *links.Link, news *guestv1.IncarnationNews) { l.told <- news }
func (l listener) Silent(lk *links.Link)                             { l.silent <- lk }

func listening(b *guesttest.Bench) listener {
	l := listener{make(chan *guestv1.IncarnationNews, 1), make(chan *links.Link, 1)}
	b.Links.SendReports(noReports{})
	b.Links.SendNews(l)
	return l
}

func TestALinkTellsAboutIncarnations(t *testing.T) {
	b := guesttest.New(t)
	l := listening(b)
	over := make(chan struct{})
	b.Serve(storyteller{protocol: rpc.AgentsSince, news: &guestv1.IncarnationNews{ExecId: "agent-x-1", Rows: 3}, over: over}.methods())
	b.Connect()
	if news := <-l.told; news.GetExecId() != "agent-x-1" || news.GetRows() != 3 {
		t.Errorf("it tells %v", news)
	}
	close(over)
	lk := <-l.silent
	if lk.SandboxID != "a" {
		t.Errorf("the link of %s is silent", lk.SandboxID)
	}
	<-b.Lost // the next link follows again
}

func TestASupervisorThatTellsNonsenseIsCutOff(t *testing.T) {
	for _, news := range []*guestv1.IncarnationNews{
		{ExecId: "../x"}, {ExecId: "x", Rows: 1 << 40}, {ExecId: "x", SilentMs: 1 << 63}, {ExecId: "x", Lifecycle: "A state with a name that nobody has"},
		{ExecId: "x", Requests: []*guestv1.AgentRequest{{Op: "wait"}}}, {ExecId: "x", OpenRequests: make([]uint64, 1000)},
	} {
		b := guesttest.New(t)
		l := listening(b)
		begin := make(chan struct{})
		b.Serve(storyteller{protocol: rpc.AgentsSince, news: news, begin: begin, over: make(chan struct{})}.methods())
		b.Connect() // it fails if the link is cut off before it returns
		close(begin)
		<-l.silent
		<-b.Lost
		if len(l.told) > 0 {
			t.Errorf("%v was believed", news)
		}
		if err := b.Links.Broken("a"); fault.ReasonOf(err) != agboxv1.ErrorReason_SUPERVISOR_TAMPERED {
			t.Errorf("of broken links it says %v", err)
		}
	}
}

func TestAnOlderSupervisorIsNotFollowed(t *testing.T) {
	b := guesttest.New(t)
	l := listening(b)
	b.Serve(storyteller{protocol: rpc.AgentsSince - 1, over: make(chan struct{})}.methods())
	b.Connect()
	b.Links.Close() // waits for all goroutines
	if len(l.told)+len(l.silent) > 0 {
		t.Error("it was followed")
	}
}
