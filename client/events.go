package client

import (
	"context"
	"iter"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"google.golang.org/grpc"
)

// Events replays the events of one sandbox and continues with new ones, without gaps or
// duplicates, even if the daemon restarts. It starts after the sequence number after; 0
// means everything that is kept. It ends after SANDBOX_DELETED or with an error. A
// sequence that is no longer kept is ErrOutOfRange.
func (c *Client) Events(ctx context.Context, sandbox string, after uint64) iter.Seq2[*agboxv1.SandboxEvent, error] {
	return func(yield func(*agboxv1.SandboxEvent, error) bool) {
		f := feed[agboxv1.SandboxEvent]{
			closes: true,
			open: func(ctx context.Context, api agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.SandboxEvent], error) {
				return api.SubscribeSandboxEvents(ctx, &agboxv1.SubscribeSandboxEventsRequest{
					SandboxId: sandbox, FromSequence: after, ExactTypes: true, IncludeMain: true,
				})
			},
			take: func(ev *agboxv1.SandboxEvent) (bool, error) {
				if ev.GetSequence() <= after {
					return false, nil
				}
				// Use the id after the first event: the name may pass to another sandbox.
				sandbox, after = ev.GetSandboxId(), ev.GetSequence()
				return !yield(ev, nil), nil
			},
		}
		if err := f.run(ctx, c); err != nil {
			yield(nil, err)
		}
	}
}

// WatchOptions selects the events of WatchEvents.
type WatchOptions struct {
	// After is the position of the last event seen; 0 replays everything that is kept.
	After uint64
	// LiveOnly skips events before the call. After must be 0.
	LiveOnly bool
	// Labels must all match. An empty map selects all sandboxes.
	Labels map[string]string
}

// WatchEvents replays and follows the events of all sandboxes in commit order, even if
// the daemon restarts. The first item has no event: it confirms the watch and has its
// start position. It ends with an error, or when the caller ends its loop.
func (c *Client) WatchEvents(ctx context.Context, o WatchOptions) iter.Seq2[*agboxv1.WatchEventsResponse, error] {
	return func(yield func(*agboxv1.WatchEventsResponse, error) bool) {
		at, stands := o.After, false
		f := feed[agboxv1.WatchEventsResponse]{
			open: func(ctx context.Context, api agboxv1.SandboxServiceClient) (grpc.ServerStreamingClient[agboxv1.WatchEventsResponse], error) {
				return api.WatchEvents(ctx, &agboxv1.WatchEventsRequest{
					AfterPosition: at,
					// Once a position is known, a new stream must not skip later events.
					LiveOnly:      o.LiveOnly && !stands,
					LabelSelector: o.Labels,
				})
			},
			take: func(m *agboxv1.WatchEventsResponse) (bool, error) {
				if m.GetEvent() == nil {
					if stands {
						// No selected event lies before this position.
						at = max(at, m.GetPosition())
						return false, nil
					}
					at, stands = m.GetPosition(), true
					return !yield(m, nil), nil
				}
				if m.GetPosition() <= at {
					return false, nil
				}
				at, stands = m.GetPosition(), true
				return !yield(m, nil), nil
			},
		}
		if err := f.run(ctx, c); err != nil {
			yield(nil, err)
		}
	}
}

// PastEvents returns the events of one sandbox after a sequence number, up to the current
// newest.
func (c *Client) PastEvents(ctx context.Context, sandbox string, after uint64) iter.Seq2[*agboxv1.SandboxEvent, error] {
	return func(yield func(*agboxv1.SandboxEvent, error) bool) {
		out, err := c.GetSandbox(ctx, sandbox)
		if err != nil {
			yield(nil, err)
			return
		}
		newest := out.GetSandbox().GetLastEventSequence()
		if newest == after {
			return
		}
		// The daemon refuses a sequence beyond the newest.
		for ev, err := range c.Events(ctx, out.GetSandbox().GetSandboxId(), after) {
			if !yield(ev, err) || err != nil || ev.GetSequence() >= newest {
				return
			}
		}
	}
}

// PastEventsOfAll returns the events of all sandboxes after a position, up to the newest
// that is kept now.
func (c *Client) PastEventsOfAll(ctx context.Context, after uint64) iter.Seq2[*agboxv1.WatchEventsResponse, error] {
	return func(yield func(*agboxv1.WatchEventsResponse, error) bool) {
		newest := after
		for m, err := range c.WatchEvents(ctx, WatchOptions{After: after}) {
			if err == nil && m.GetEvent() == nil {
				if newest = m.GetNewestPosition(); newest <= after {
					return
				}
				continue
			}
			if !yield(m, err) || err != nil || m.GetPosition() >= newest {
				return
			}
		}
	}
}
