package docker

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/agbox/agbox/runtime"
)

// progressInterval is the shortest time between two reports of a pull.
const progressInterval = 500 * time.Millisecond

// pullMessage is one message of the engine's stream.
type pullMessage struct {
	ID             string `json:"id"`
	Status         string `json:"status"`
	ProgressDetail struct {
		Current int64 `json:"current"`
		Total   int64 `json:"total"`
	} `json:"progressDetail"`
	Error       string `json:"error"`
	ErrorDetail struct {
		Message string `json:"message"`
	} `json:"errorDetail"`
}

// err returns a failure that the engine reports inside the stream, after a
// successful HTTP status.
func (m pullMessage) err() error {
	switch {
	case m.ErrorDetail.Message != "":
		return errors.New(m.ErrorDetail.Message)
	case m.Error != "":
		return errors.New(m.Error)
	}
	return nil
}

// readPull reads the stream until the pull has ended.
func readPull(stream io.Reader, progress func(runtime.PullProgress)) error {
	layers := pullLayers{}
	var reported time.Time
	messages := json.NewDecoder(stream)
	for {
		var m pullMessage
		err := messages.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if err := m.err(); err != nil {
			return err
		}
		if layers.observe(m) && progress != nil && time.Since(reported) >= progressInterval {
			reported = time.Now()
			progress(layers.sum())
		}
	}
	if progress != nil && len(layers) > 0 {
		progress(layers.sum())
	}
	return nil
}

// pullLayer is the progress of one layer, in bytes.
type pullLayer struct {
	done        bool
	have, total int64
}

// pullLayers maps the short ids of one pull's layers to their progress.
type pullLayers map[string]pullLayer

// observe records a message. It returns false if the message is not about a layer.
func (l pullLayers) observe(m pullMessage) bool {
	if m.ID == "" {
		return false
	}
	layer := l[m.ID]
	switch m.Status {
	case "Pulling fs layer", "Waiting", "Verifying Checksum":
	case "Downloading":
		layer.have, layer.total = m.ProgressDetail.Current, max(layer.total, m.ProgressDetail.Total)
	case "Download complete", "Extracting": // extraction counts its bytes from 0 again
		layer.have = layer.total
	case "Pull complete", "Already exists":
		layer.have, layer.done = layer.total, true
	default: // for example "Pulling from library/debian", whose id is the tag
		return false
	}
	l[m.ID] = layer
	return true
}

func (l pullLayers) sum() runtime.PullProgress {
	p := runtime.PullProgress{LayersTotal: len(l)}
	for _, layer := range l {
		if layer.done {
			p.LayersDone++
		}
		p.BytesDone += layer.have
		p.BytesTotal += layer.total
	}
	return p
}

// pulls has the pulls in progress. Concurrent callers of the same image share one.
type pulls struct {
	mu      sync.Mutex // guards running and waiters, latest and changed of each entry; not held during I/O
	running map[runtime.ImageRequest]*sharedPull
	wg      sync.WaitGroup
}

type sharedPull struct {
	// waiters is the number of callers that wait. The last one to leave cancels the pull.
	waiters int
	cancel  context.CancelFunc
	latest  runtime.PullProgress
	// changed is closed and replaced when latest changes.
	changed chan struct{}
	// done is closed when the pull has ended; latest and err are final then.
	done chan struct{}
	err  error
}

// share waits for the pull of the image and starts it if there is none. If ctx is
// cancelled, only this caller stops waiting; the pull continues for the others. It
// calls progress in the caller's goroutine.
func (p *pulls) share(ctx context.Context, want runtime.ImageRequest, pull func(context.Context, func(runtime.PullProgress)) error, progress func(runtime.PullProgress)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	mine := p.join(ctx, want, pull)
	for {
		p.mu.Lock()
		latest, changed := mine.latest, mine.changed
		p.mu.Unlock()
		if progress != nil && latest.LayersTotal > 0 {
			progress(latest)
		}
		select {
		case <-changed:
		case <-mine.done:
			if progress != nil && mine.latest != latest {
				progress(mine.latest)
			}
			return mine.err
		case <-ctx.Done():
			p.leave(want, mine)
			return ctx.Err()
		}
	}
}

func (p *pulls) join(ctx context.Context, want runtime.ImageRequest, pull func(context.Context, func(runtime.PullProgress)) error) *sharedPull {
	p.mu.Lock()
	defer p.mu.Unlock()
	if there := p.running[want]; there != nil {
		there.waiters++
		return there
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	made := &sharedPull{waiters: 1, cancel: cancel, changed: make(chan struct{}), done: make(chan struct{})}
	if p.running == nil {
		p.running = make(map[runtime.ImageRequest]*sharedPull)
	}
	p.running[want] = made
	p.wg.Go(func() {
		defer cancel()
		err := pull(life, func(now runtime.PullProgress) {
			p.mu.Lock()
			defer p.mu.Unlock()
			made.latest = now
			close(made.changed)
			made.changed = make(chan struct{})
		})
		p.mu.Lock()
		if p.running[want] == made {
			delete(p.running, want)
		}
		p.mu.Unlock()
		made.err = err
		close(made.done)
	})
	return made
}

func (p *pulls) leave(want runtime.ImageRequest, left *sharedPull) {
	p.mu.Lock()
	left.waiters--
	last := left.waiters == 0
	if last && p.running[want] == left {
		delete(p.running, want) // the next caller starts a new pull
	}
	p.mu.Unlock()
	if last {
		left.cancel()
		<-left.done
	}
}
