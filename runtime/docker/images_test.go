package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

func TestImageSettingsAreRead(t *testing.T) {
	e, _ := testEngine(t)
	image, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: testImage}, func(runtime.PullProgress) { t.Error("a local image was pulled") })
	must(t, err)
	if !slices.Equal(image.Cmd, []string{"sh"}) || image.WorkingDir != "/workdir" || !slices.Contains(image.Env, "IMAGE_ENV=from-image") {
		t.Errorf("the image is %+v", image)
	}
}

func TestPullFromAnUnreachableRegistryNamesTheImage(t *testing.T) {
	e, _ := testEngine(t)
	const ref = "127.0.0.1:1/nothing/here:1" // nobody listens on port 1
	_, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: ref}, nil)
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED, ref)
}

// pulling answers like an engine that does not have the image at first and whose
// pull sends the given lines.
func pulling(t *testing.T, status int, lines ...string) *Engine {
	pulled := false
	return standIn(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ping(w, r, "1.41"):
		case strings.HasSuffix(r.URL.Path, "/images/create"):
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			for _, line := range lines {
				_, _ = fmt.Fprintln(w, line)
			}
			pulled = true
		case !pulled:
			refuse(w, http.StatusNotFound, "No such image")
		default:
			_, _ = fmt.Fprint(w, `{"Id":"sha256:abc","Config":{"Cmd":["x"]}}`)
		}
	})
}

func TestPullReportsProgressAndReturnsTheImage(t *testing.T) {
	e := pulling(t, http.StatusOK,
		`{"status":"Pulling from library/x","id":"latest"}`,
		`{"status":"Already exists","id":"l0"}`,
		`{"status":"Pulling fs layer","id":"l1"}`,
		`{"status":"Downloading","progressDetail":{"current":40,"total":100},"id":"l1"}`,
		`{"status":"Download complete","id":"l1"}`,
		`{"status":"Extracting","progressDetail":{"current":7,"total":999},"id":"l1"}`,
		`{"status":"Pull complete","id":"l1"}`,
		`{"status":"Status: Downloaded newer image for x"}`)
	var seen []runtime.PullProgress
	image, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: "x"}, func(p runtime.PullProgress) { seen = append(seen, p) })
	must(t, err)
	if image.ID != "sha256:abc" {
		t.Errorf("the image is %+v", image)
	}
	if want := (runtime.PullProgress{LayersDone: 2, LayersTotal: 2, BytesDone: 100, BytesTotal: 100}); seen[len(seen)-1] != want {
		t.Errorf("the last progress is %+v, want %+v", seen[len(seen)-1], want)
	}
}

func TestPullProgressIsThrottledAndReportedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no time passes by itself
		lines := strings.Repeat(`{"status":"Downloading","progressDetail":{"current":40,"total":100},"id":"l1"}`, 100)
		told := 0
		must(t, readPull(strings.NewReader(lines), func(runtime.PullProgress) { told++ }))
		if told != 2 {
			t.Errorf("progress was told %d times in an instant, want at the first line and at the end", told)
		}
		told = 0
		must(t, readPull(io.MultiReader(strings.NewReader(lines), later(progressInterval), strings.NewReader(lines)), func(runtime.PullProgress) { told++ }))
		if told != 3 {
			t.Errorf("progress was told %d times, want once more for the second interval", told)
		}
	})
}

// later is a reader that returns EOF after the given time.
type later time.Duration

func (l later) Read([]byte) (int, error) {
	time.Sleep(time.Duration(l)) // on the bubble's clock
	return 0, io.EOF
}

func TestExtractionDoesNotReduceTheDownloadedBytes(t *testing.T) {
	layers := pullLayers{}
	for _, line := range []struct {
		status         string
		current, total int64
		want           int64
	}{
		{"Pulling fs layer", 0, 0, 0}, {"Downloading", 40, 100, 40}, {"Verifying Checksum", 0, 0, 40},
		{"Download complete", 0, 0, 100}, {"Extracting", 7, 999, 100}, {"Pull complete", 0, 0, 100},
	} {
		m := pullMessage{ID: "l1", Status: line.status}
		m.ProgressDetail.Current, m.ProgressDetail.Total = line.current, line.total
		if layers.observe(m); layers.sum().BytesDone != line.want {
			t.Errorf("after %q it is %+v, want %d bytes done", line.status, layers.sum(), line.want)
		}
	}
}

func TestFailedPullsSayWhatToDoAndNameNoHost(t *testing.T) {
	const host = "registry.example.org"
	for text, want := range map[string]struct {
		class  error
		reason agboxv1.ErrorReason
	}{
		"Get https://" + host + "/v2/: dial tcp: lookup " + host + ": no such host":                    {errdefs.ErrUnavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED},
		"Get https://" + host + "/v2/: net/http: request canceled (Client.Timeout exceeded)":           {errdefs.ErrUnavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED},
		"pull access denied for x, repository does not exist or may require 'docker login' at " + host: {errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND},
		"manifest for " + host + "/x not found: manifest unknown: manifest unknown":                    {errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND},
		"no matching manifest for linux/amd64 in the manifest list entries of " + host:                 {errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND},
		"write /var/lib/docker/tmp/x: no space left on device, from " + host:                           {errdefs.ErrResourceExhausted, agboxv1.ErrorReason_IMAGE_PULL_FAILED},
		"toomanyrequests: You have reached your pull rate limit at " + host:                            {errdefs.ErrUnavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED},
		"unexpected EOF from " + host: {errdefs.ErrUnavailable, agboxv1.ErrorReason_IMAGE_PULL_FAILED},
	} {
		inStream := pulling(t, http.StatusOK, `{"status":"Pulling","id":"l1"}`, fmt.Sprintf(`{"errorDetail":{"message":%q},"error":%q}`, text, text))
		atOnce := pulling(t, http.StatusInternalServerError, fmt.Sprintf(`{"message":%q}`, text))
		for _, e := range []*Engine{inStream, atOnce} {
			_, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: "some-image:1"}, nil)
			wantFault(t, err, want.class, want.reason, "some-image:1")
			if f := fault.Of(err); f != nil && strings.Contains(f.Message, host) {
				t.Errorf("the sentence names a host: %s", f.Message)
			}
		}
	}
}

func TestAFailedPullOfALocalImageDoesNotSayThatItIsMissing(t *testing.T) {
	for _, text := range []string{"dial tcp: no such host", "pull access denied for x", "manifest unknown"} {
		e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
			switch {
			case ping(w, r, "1.41"):
			case strings.HasSuffix(r.URL.Path, "/images/create"):
				refuse(w, http.StatusInternalServerError, text)
			default:
				_, _ = fmt.Fprint(w, `{"Id":"sha256:abc","Config":{"Cmd":["x"]}}`)
			}
		})
		_, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: "x:1", Policy: runtime.PullAlways}, nil)
		if f := fault.Of(err); f == nil || !strings.HasPrefix(f.Message, "The image x:1 is on this machine, but ") {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

func TestAPullWhoseStreamBreaksIsUnavailable(t *testing.T) {
	e := pulling(t, http.StatusOK, `{"status":"Downloading","id":"l1"`)
	_, err := e.EnsureImage(t.Context(), runtime.ImageRequest{Ref: "x"}, nil)
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "was lost")
}

func TestCancelledPullEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ping(w, r, "1.41"):
		case strings.HasSuffix(r.URL.Path, "/images/create"):
			_, _ = fmt.Fprintln(w, `{"status":"Waiting","id":"l1"}`)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		default:
			refuse(w, http.StatusNotFound, "No such image")
		}
	})
	_, err := e.EnsureImage(ctx, runtime.ImageRequest{Ref: "x"}, func(runtime.PullProgress) { cancel() })
	if !errdefs.IsUnavailable(err) || !errors.Is(err, context.Canceled) || fault.Of(err) != nil {
		t.Errorf("the error is %v, want a cancellation of class %v and no fault of the image", err, errdefs.ErrUnavailable)
	}
}
