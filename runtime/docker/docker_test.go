package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// standIn serves the engine's API with a handler and returns an Engine connected to
// it, to test what a healthy engine does not do.
func standIn(t *testing.T, handler http.HandlerFunc) *Engine {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "d.sock")
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Read the whole request first, as an engine does. Otherwise a client that still
		// writes would get a broken pipe instead of the answer.
		_, _ = io.Copy(io.Discard, r.Body)
		handler(w, r)
	})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	e, err := New(Options{Host: "unix://" + socket})
	must(t, err)
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// ping answers a ping with an API version. It returns false for other requests.
func ping(w http.ResponseWriter, r *http.Request, version string) (answered bool) {
	if !strings.HasSuffix(r.URL.Path, "/_ping") {
		return false
	}
	w.Header().Set("Api-Version", version)
	return true
}

func refuse(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"message": message})
}

// engineError returns the error of a call that the engine answers with status and message.
func engineError(t *testing.T, status int, message string, call func(*Engine) error) error {
	t.Helper()
	return call(standIn(t, func(w http.ResponseWriter, r *http.Request) {
		if !ping(w, r, "1.41") {
			refuse(w, status, message)
		}
	}))
}

func TestMissingSocketSaysToInstallOrStartDocker(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.sock")
	e, err := New(Options{Host: "unix://" + missing})
	must(t, err)
	_, err = e.Info(t.Context())
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "install Docker")
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, missing)
}

func TestSocketWithoutListenerSaysToStartDocker(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "d.sock")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	must(t, err)
	listener.SetUnlinkOnClose(false)
	must(t, listener.Close())
	e, err := New(Options{Host: "unix://" + socket})
	must(t, err)
	_, err = e.Info(t.Context())
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "start it")
}

func TestForbiddenSocketSaysToJoinTheGroup(t *testing.T) {
	e, err := New(Options{Host: "unix:///var/run/docker.sock"})
	must(t, err)
	denied := &net.OpError{Op: "dial", Net: "unix", Err: fs.ErrPermission} // root in tests is never denied
	wantFault(t, e.unreachable(denied), errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "usermod -aG docker")
}

func TestAnotherServerOnTheSocketIsNotAnEngine(t *testing.T) {
	e := standIn(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "hello") })
	_, err := e.Info(t.Context())
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "does not answer")
}

func TestUnusableHostIsRefused(t *testing.T) {
	for _, host := range []string{"docker", "ssh://me@there", "unix://" + strings.Repeat("x", 200)} {
		_, err := New(Options{Host: host})
		wantFault(t, err, errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST, host)
	}
}

func TestHostComesFromTheEnvironment(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix:///tmp/from-environment.sock")
	e, err := New(Options{})
	must(t, err)
	if e.host != "unix:///tmp/from-environment.sock" {
		t.Errorf("the host is %s", e.host)
	}
}

// An engine that is slow or fails has not said that it lacks the image.
func TestOnlyAnAnswerOfTheEngineSaysThatItHasNoImage(t *testing.T) {
	status := http.StatusNotFound
	e := standIn(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"message":"of a test"}`))
	})
	want := runtime.ImageRequest{Ref: "busybox"}
	if here, err := e.HasImage(t.Context(), want); here || err != nil {
		t.Errorf("without the image: %v, %v", here, err)
	}
	status = http.StatusInternalServerError
	if here, err := e.HasImage(t.Context(), want); here || err == nil {
		t.Errorf("an engine that fails: %v, %v", here, err)
	}
}

func TestHangingEngineIsUnavailableAtTheDeadline(t *testing.T) {
	release := make(chan struct{})
	e := standIn(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := e.InspectContainer(ctx, "x")
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "in time")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v does not say that the deadline passed", err)
	}
}

func TestReplyThatIsCutIsUnavailable(t *testing.T) {
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		if ping(w, r, "1.41") {
			return
		}
		w.Header().Set("Content-Length", "1000")
		_, _ = fmt.Fprint(w, `{"Id":"abc"`)
	})
	_, err := e.InspectContainer(t.Context(), "x")
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "was lost")
}

func TestAContainerThatGoesWhileItIsMeasuredHasNoUsage(t *testing.T) {
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		if !ping(w, r, "1.41") {
			w.WriteHeader(http.StatusOK) // and no statistics
		}
	})
	if used, err := e.ContainerUsage(t.Context(), "x"); err != nil || !used.At.IsZero() {
		t.Errorf("%+v, %v", used, err)
	}
}

func TestAReplacedEngineIsNegotiatedWithAgain(t *testing.T) {
	var version atomic.Value
	var pings atomic.Int32
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		now, _ := version.Load().(string)
		if ping(w, r, now) {
			pings.Add(1)
			return
		}
		if !strings.HasPrefix(r.URL.Path, "/v"+now+"/") {
			refuse(w, http.StatusBadRequest, "client version is too new. Maximum supported API version is "+now)
			return
		}
		_, _ = fmt.Fprint(w, `{"Version":"x"}`)
	})
	for _, now := range []string{"1.45", "1.41", "1.44"} {
		version.Store(now)
		info, err := e.Info(t.Context())
		if err != nil || info.APIVersion != now {
			t.Errorf("with an engine of version %s: %+v, %v", now, info, err)
		}
	}
	if pings.Load() != 3 {
		t.Errorf("the engine was pinged %d times, want once for each version", pings.Load())
	}
}

func TestAnUnsupportedAPIVersionIsExplained(t *testing.T) {
	err := engineError(t, http.StatusBadRequest, "client version 1.41 is too old. Minimum supported API version is 1.60", func(e *Engine) error {
		_, err := e.Info(t.Context())
		return err
	})
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "1.60")
}

func TestALostConnectionMakesTheNextCallNegotiateAgain(t *testing.T) {
	var pings atomic.Int32
	var cut atomic.Bool
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ping(w, r, "1.41"):
			pings.Add(1)
		case cut.Load():
			panic(http.ErrAbortHandler)
		default:
			_, _ = fmt.Fprint(w, `{"Version":"x"}`)
		}
	})
	for _, broken := range []bool{false, true, false} {
		cut.Store(broken)
		if _, err := e.Info(t.Context()); errdefs.IsUnavailable(err) != broken {
			t.Errorf("with a broken engine (%v) the error is %v", broken, err)
		}
	}
	if pings.Load() != 2 {
		t.Errorf("the engine was pinged %d times, want 2", pings.Load())
	}
}

func TestEngineErrorsKeepTheirClass(t *testing.T) {
	inspect := func(e *Engine) error { _, err := e.InspectContainer(t.Context(), "x"); return err }
	start := func(e *Engine) error { return e.StartContainer(t.Context(), "x") }
	for _, c := range []struct {
		status int
		call   func(*Engine) error
		is     func(error) bool
	}{
		{http.StatusNotFound, inspect, errdefs.IsNotFound},
		{http.StatusConflict, inspect, errdefs.IsConflict},
		{http.StatusBadRequest, inspect, errdefs.IsInvalidArgument},
		{http.StatusInternalServerError, inspect, errdefs.IsInternal},
		{http.StatusServiceUnavailable, inspect, errdefs.IsUnavailable},
		{http.StatusConflict, start, errdefs.IsConflict},
		{http.StatusInternalServerError, start, errdefs.IsInternal},
	} {
		if err := engineError(t, c.status, "No such container: x", c.call); !c.is(err) {
			t.Errorf("status %d becomes %v", c.status, err)
		}
	}
}

func TestEngineMessagesAreShortenedToOneLine(t *testing.T) {
	err := engineError(t, http.StatusInternalServerError, "driver failed:\n"+strings.Repeat("long ", 1000), func(e *Engine) error {
		return e.StartContainer(t.Context(), "x")
	})
	f := fault.Of(err)
	if f == nil || len(f.Message) > 600 || strings.Contains(f.Message, "\n") || !strings.HasPrefix(f.Message, "Docker could not start the container: driver failed: long") {
		t.Errorf("the sentence is %q", err)
	}
}

func TestAFullDiskOfTheEngineIsReported(t *testing.T) {
	err := engineError(t, http.StatusInternalServerError, "mkdir /var/lib/docker/overlay2/x: no space left on device", func(e *Engine) error {
		return e.StartContainer(t.Context(), "x")
	})
	if !errdefs.IsResourceExhausted(err) || fault.ReasonOf(err) != agboxv1.ErrorReason_FILE_SYSTEM_FULL || !strings.Contains(err.Error(), "free some space") {
		t.Errorf("it says %v", err)
	}
}

func TestAVolumeUsedByAForeignContainerIsReported(t *testing.T) {
	err := engineError(t, http.StatusConflict, "remove v: volume is in use - [abc]", func(e *Engine) error {
		return e.RemoveVolume(t.Context(), "v")
	})
	if f := fault.Of(err); f == nil || !strings.Contains(f.Message, "docker ps -a --filter volume=v") {
		t.Errorf("it says %v", err)
	}
}

func TestEnsureContainerRetriesUntilTheNameIsReleased(t *testing.T) {
	var creates atomic.Int32
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ping(w, r, "1.41"):
		case strings.HasSuffix(r.URL.Path, "/containers/create") && creates.Add(1) < 3:
			refuse(w, http.StatusConflict, "Conflict. The container name is already in use")
		case strings.HasSuffix(r.URL.Path, "/containers/create"):
			_, _ = fmt.Fprint(w, `{"Id":"made"}`)
		case creates.Load() == 1:
			refuse(w, http.StatusNotFound, "No such container: n")
		case strings.HasSuffix(r.URL.Path, "/wait"):
			_, _ = fmt.Fprint(w, `{"StatusCode":0}`)
		default:
			_, _ = fmt.Fprint(w, `{"Id":"old","Name":"/n","State":{"Status":"removing"},"Config":{}}`)
		}
	})
	id, err := e.EnsureContainer(t.Context(), runtime.ContainerSpec{Name: "n"})
	if err != nil || id != "made" {
		t.Errorf("the container is %q, %v", id, err)
	}
}

func TestCreateWithoutItsNetworkIsNotAMissingImage(t *testing.T) {
	err := engineError(t, http.StatusNotFound, "network abc not found", func(e *Engine) error {
		_, err := e.EnsureContainer(t.Context(), runtime.ContainerSpec{Name: "n"})
		return err
	})
	wantFault(t, err, errdefs.ErrInternal, agboxv1.ErrorReason_ENGINE_FAILED, "network abc")
}

func TestARemovalByAnotherOfWhichTheEngineDoesNotTellTheEndEnds(t *testing.T) {
	var removals atomic.Int32
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ping(w, r, "1.41"):
		case strings.HasSuffix(r.URL.Path, "/wait"):
			w.WriteHeader(http.StatusOK)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case removals.Add(1) == 1:
			refuse(w, http.StatusConflict, "removal of container c is already in progress")
		default:
			refuse(w, http.StatusNotFound, "No such container: c")
		}
	})
	if err := e.RemoveContainer(t.Context(), "c"); err != nil {
		t.Error(err)
	}
}
