package guest

import (
	"context"
	"io"
	"math"
	"time"

	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/internal/ids"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/guest/rpc"
)

// Agents reports whether the supervisor has the calls about agents.
func (c *Conn) Agents() bool { return c.protocol >= rpc.AgentsSince }

// Follow follows the incarnations in the sandbox until ctx is cancelled or the connection
// is lost. It always returns an error. It calls report with the news of each running
// incarnation, then with those of each that begins or changes; news replace earlier ones of
// the same exec. report must be quick, as for Watch. The protocol cannot cancel a single call, so
// the caller should close the connection after Follow.
func (c *Conn) Follow(ctx context.Context, report func(*guestv1.IncarnationNews)) error {
	stream, err := c.rpc.Stream(ctx, "guest.v1.Agents/Follow", &guestv1.FollowRequest{})
	if err != nil {
		return c.explain(ctx, err)
	}
	for {
		reply := new(guestv1.FollowResponse)
		if err := stream.Recv(reply); err != nil {
			return c.explain(ctx, err)
		}
		news := reply.GetNews()
		if news == nil { // a supervisor can end the stream with an empty message
			return c.explain(ctx, io.EOF)
		}
		if what := invalidNews(news); what != "" {
			return c.violation("it sent " + what)
		}
		report(news)
	}
}

// maxState is more than the length of any name of a state, in bytes.
const maxState = 32

// invalidNews describes the first invalid field of news; it is empty if they are valid.
func invalidNews(n *guestv1.IncarnationNews) string {
	switch {
	case !ids.Valid(n.GetExecId()):
		return "news of an exec with an id that is not valid"
	case n.GetRows() > journal.MaxJournal:
		return "a number of rows that no journal can have"
	case n.GetSilentMs() > uint64(math.MaxInt64/time.Millisecond):
		return "a time that is too long"
	case len(n.GetLifecycle()) > maxState:
		return "the name of a state that is too long"
	case len(n.GetRequests()) > MaxRequests || len(n.GetOpenRequests()) > MaxRequests:
		return "more requests than an incarnation may have"
	}
	for _, r := range n.GetRequests() {
		if r.GetNumber() == 0 || len(r.GetOp()) > maxState {
			return "a request that is not valid"
		}
	}
	return ""
}

// MaxRequests is more than the number of open requests that an incarnation may have.
const MaxRequests = 1 << 8

// Answer answers a request of an incarnation. False means that nobody waits for the answer
// any more.
func (c *Conn) Answer(ctx context.Context, req *guestv1.AnswerRequest) (bool, error) {
	reply, err := call[guestv1.AnswerResponse](ctx, c, "Agents/Answer", req)
	if err != nil {
		return false, c.explain(ctx, err)
	}
	return reply.GetWaits(), nil
}

// Look says how files in the container and its limits are now, as a user may know it. An empty
// user is the default one of commands.
func (c *Conn) Look(ctx context.Context, user string, paths []string) (journal.Seen, error) {
	reply, err := call[guestv1.LookResponse](ctx, c, "Agents/Look", &guestv1.LookRequest{Paths: paths, User: user})
	if err != nil {
		return journal.Seen{}, c.explain(ctx, err)
	}
	if len(reply.GetFiles()) != len(paths) || len(reply.GetLimits()) > maxState {
		return journal.Seen{}, c.violation("it looked at other files than those that it was asked about")
	}
	seen := journal.Seen{Files: make(map[string]journal.File), Limits: reply.GetLimits()}
	for i, f := range reply.GetFiles() {
		seen.Files[paths[i]] = journal.File{Exists: f.GetExists(), Size: f.GetSize(), Modified: f.GetModified(), Inode: f.GetInode(), Sum: f.GetSum()}
	}
	return seen, nil
}

// Drain drains an incarnation of an agent: the supervisor tells it to save its work and to
// exit, and ends it when the times of the request are over. Drain does not wait for that. A
// second call changes nothing. False means that the exec is no running incarnation. A
// supervisor that is too old fails with errdefs.ErrNotImplemented.
func (c *Conn) Drain(ctx context.Context, req *guestv1.DrainRequest) (bool, error) {
	reply, err := call[guestv1.DrainResponse](ctx, c, "Agents/Drain", req)
	return c.running(ctx, reply, err)
}

// Allot tells an incarnation of an agent what the children of the agent have of its budget.
// False means that it does not run. A supervisor that is too old fails with
// errdefs.ErrNotImplemented.
func (c *Conn) Allot(ctx context.Context, req *guestv1.AllotRequest) (bool, error) {
	reply, err := call[guestv1.AllotResponse](ctx, c, "Agents/Allot", req)
	return c.running(ctx, reply, err)
}

// Pause tells an incarnation of an agent that the agent is paused, or is not any more. False
// means that it does not run. A supervisor that is too old fails with
// errdefs.ErrNotImplemented.
func (c *Conn) Pause(ctx context.Context, req *guestv1.PauseRequest) (bool, error) {
	reply, err := call[guestv1.PauseResponse](ctx, c, "Agents/Pause", req)
	return c.running(ctx, reply, err)
}
