package docker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/runtime"
)

// eventActions are the changes that the daemon needs. The engine filters out the
// others, above all the steps of every 'docker exec'. It compares health_status as
// a prefix.
var eventActions = []events.Action{
	events.ActionCreate, events.ActionStart, events.ActionRestart, events.ActionDie, events.ActionOOM,
	events.ActionStop, events.ActionPause, events.ActionUnPause, events.ActionRename, events.ActionDestroy,
	events.ActionHealthStatus,
}

// openingOverlap replays events of the time between the engine's reply and the
// begin of its subscription, which would be lost otherwise.
const openingOverlap = time.Second

// Events calls ready once when the stream is open, then handle for each change of
// a container of the install. It returns when ctx is cancelled or the stream
// breaks; the error says which and is never nil. handle must not block, because
// the engine drops events for slow readers. Events after since are replayed; zero
// means from now. Choose since with some overlap. The engine keeps only the last
// 256 events of all containers.
func (e *Engine) Events(ctx context.Context, installID string, since time.Time, ready func(), handle func(runtime.Event)) error {
	if since.IsZero() {
		since = time.Now().Add(-openingOverlap)
	}
	filter := ownFilter(installID, "")
	filter.Add("type", string(events.ContainerEventType))
	for _, action := range eventActions {
		filter.Add("event", string(action))
	}
	// A stream is opened after a loss of the engine, which may be back with another
	// version. So negotiate again.
	if cli := e.current.Load(); cli != nil {
		e.forget(cli)
	}
	ready = sync.OnceFunc(ready)
	return e.call(ctx, "send events", func(cli *client.Client) error {
		return readEvents(ctx, cli, filter, since, ready, handle)
	})
}

func readEvents(ctx context.Context, cli *client.Client, filter filters.Args, since time.Time, ready func(), handle func(runtime.Event)) error {
	ctx, cancel := context.WithCancel(ctx)
	messages, failed := cli.Events(ctx, events.ListOptions{
		Since:   fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond()),
		Filters: filter,
	})
	defer func() {
		cancel()
		for range failed { // closed when the library's reader has ended
		}
	}()
	select {
	case err := <-failed:
		return err
	default:
		ready()
	}
	for {
		select {
		case msg := <-messages:
			if event, ok := decodeEvent(msg); ok {
				handle(event)
			}
		case err := <-failed:
			return err
		}
	}
}

func decodeEvent(msg events.Message) (runtime.Event, bool) {
	id, ok := decodeLabels(msg.Actor.Attributes)
	return runtime.Event{
		Identity: id,
		Action:   string(msg.Action),
		ObjectID: msg.Actor.ID,
		Time:     time.Unix(0, msg.TimeNano),
	}, ok
}
