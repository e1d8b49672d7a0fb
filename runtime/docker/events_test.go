package docker

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

func TestABrokenEventStreamReturnsAnError(t *testing.T) {
	mine := runtime.Identity{InstallID: "mine", SandboxID: "s", Nonce: "n", Role: runtime.RolePrimary}
	labels := encodeLabels(mine)
	e := standIn(t, func(w http.ResponseWriter, r *http.Request) {
		if ping(w, r, "1.41") {
			return
		}
		filters := r.URL.Query().Get("filters")
		if !strings.Contains(filters, labelInstall+"=mine") || !strings.Contains(filters, "container") {
			t.Errorf("the query is %v", r.URL.Query())
		}
		since, err := strconv.ParseFloat(r.URL.Query().Get("since"), 64)
		if now := float64(time.Now().UnixMilli()) / 1000; err != nil || since >= now || since < now-60 {
			t.Errorf("without a time the stream begins at %v, %v; want a little before %v", since, err, now)
		}
		// The second one lacks labels that our objects always have.
		_, _ = fmt.Fprintf(w, `{"Type":"container","Action":"die","Actor":{"ID":"c1","Attributes":{%q:%q,%q:%q,%q:%q,%q:%q,%q:%q}},"timeNano":5}`,
			labelInstall, labels[labelInstall], labelSandbox, labels[labelSandbox], labelNonce, labels[labelNonce],
			labelRole, labels[labelRole], labelService, labels[labelService])
		_, _ = fmt.Fprintf(w, `{"Type":"container","Action":"die","Actor":{"ID":"c2","Attributes":{%q:"mine"}},"timeNano":6}`, labelInstall)
	})
	var seen []runtime.Event
	opened := 0
	err := e.Events(t.Context(), "mine", time.Time{}, func() { opened++ }, func(event runtime.Event) { seen = append(seen, event) })
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "was lost")
	want := runtime.Event{Identity: mine, Action: "die", ObjectID: "c1", Time: time.Unix(0, 5)}
	if opened != 1 || len(seen) != 1 || seen[0] != want {
		t.Errorf("opened %d times, saw %+v, want once %+v", opened, seen, want)
	}
}

func TestEventsOfAStoppedEngineFailWithoutOpening(t *testing.T) {
	e, err := New(Options{Host: "unix://" + filepath.Join(t.TempDir(), "none.sock")})
	must(t, err)
	err = e.Events(t.Context(), "mine", time.Time{}, func() { t.Error("it opened") }, func(runtime.Event) {})
	wantFault(t, err, errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "start it")
}

func TestEventsOmitExecsInContainers(t *testing.T) {
	e, spec := sandbox(t)
	id := run(t, e, spec)
	ctx, cancel := context.WithCancel(t.Context())
	opened, ended := make(chan struct{}), make(chan error, 1)
	var seen []string
	go func() {
		ended <- e.Events(ctx, spec.InstallID, time.Now(), func() { close(opened) }, func(event runtime.Event) {
			seen = append(seen, event.Action)
			if event.Action == "destroy" {
				cancel()
			}
		})
	}()
	<-opened
	output(t, id, "true")
	// A container of another install with the same sandbox id.
	foreign := foreignContainer(t, "agbox-foreign-"+spec.SandboxID, runtime.Identity{InstallID: ids.New(), SandboxID: spec.SandboxID})
	must(t, e.StartContainer(t.Context(), foreign))
	must(t, e.RemoveContainer(t.Context(), id))
	if err := <-ended; !errdefs.IsUnavailable(err) {
		t.Errorf("the stream ended with %v", err)
	}
	if strings.Join(seen, " ") != "die destroy" {
		t.Errorf("the events are %v, want die and destroy", seen)
	}
}
