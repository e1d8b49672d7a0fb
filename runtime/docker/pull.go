package docker

import (
	"encoding/json"
	"errors"
	"io"
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
