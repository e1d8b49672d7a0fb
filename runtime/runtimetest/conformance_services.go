package runtimetest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// serviceCases test what only services have: health, volumes and a log.
var serviceCases = map[string]func(*testing.T, *subject){
	"AVolumeIsMadeOnceListedAndRemoved": func(t *testing.T, s *subject) {
		spec := s.volumeSpec()
		for range 2 {
			must(t, s.Engine.EnsureVolume(t.Context(), spec))
		}
		container := s.sleeper(s.image(t).ID, s.network(t).ID)
		container.Volumes = []runtime.VolumeMount{{Volume: spec.Name, Target: "/data"}}
		id := s.ensure(t, container)
		if v := s.inventory(t).Volumes; len(v) != 1 || v[0].Name != spec.Name || v[0].Identity != spec.Identity {
			t.Errorf("the inventory has the volumes %+v", v)
		}
		if err := s.Engine.RemoveVolume(t.Context(), spec.Name); !errdefs.IsConflict(err) {
			t.Errorf("a volume in use is removed: %v", err)
		}
		must(t, s.Engine.RemoveContainer(t.Context(), id))
		for range 2 {
			must(t, s.Engine.RemoveVolume(t.Context(), spec.Name))
		}
		if v := s.inventory(t).Volumes; len(v) != 0 {
			t.Errorf("removed, but there are %+v", v)
		}
	},
	"AForeignVolumeIsNotAdopted": func(t *testing.T, s *subject) {
		theirs := s.volumeSpec()
		theirs.Nonce = "another"
		must(t, s.Engine.EnsureVolume(t.Context(), theirs))
		wantReason(t, s.Engine.EnsureVolume(t.Context(), s.volumeSpec()), agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE)
		must(t, s.Engine.RemoveVolume(t.Context(), theirs.Name))
	},
	"HealthIsInTheListWhileTheContainerRuns": func(t *testing.T, s *subject) {
		spec := s.sleeper(s.image(t).ID, s.network(t).ID)
		spec.Role, spec.Service, spec.Name = runtime.RoleService, "db", runtime.ServiceName(s.sandboxID, "db")
		spec.Healthcheck = &runtime.Healthcheck{Test: []string{"CMD", "true"}, Interval: time.Hour, StartPeriod: time.Hour}
		id := s.ensure(t, spec)
		health := func() string { return s.inventory(t).Containers[0].Health }
		if got := health(); got != "" {
			t.Errorf("before the start it is %q", got)
		}
		must(t, s.Engine.StartContainer(t.Context(), id))
		if got := []string{runtime.HealthStarting, runtime.Healthy}; !slices.Contains(got, health()) {
			t.Errorf("after the start it is %q", health())
		}
		must(t, s.Engine.StopContainer(t.Context(), id, 0))
		if got := health(); got != "" {
			t.Errorf("after the stop it is %q", got)
		}
	},
	"ACommandRunsOnlyInARunningContainer": func(t *testing.T, s *subject) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		run := func(id, input string) (string, error) {
			var out bytes.Buffer
			_, err := s.Engine.ExecIn(ctx, id, runtime.ContainerCommand{Args: []string{"cat"}},
				runtime.ContainerStreams{Stdin: io.NopCloser(strings.NewReader(input)), Stdout: &out, Stderr: &out})
			return out.String(), err
		}
		_, err := run(strings.Repeat("0", 64), "")
		wantClass(t, err, errdefs.ErrNotFound)
		id := s.ensure(t, s.sleeper(s.image(t).ID, s.network(t).ID))
		_, err = run(id, "")
		wantClass(t, err, errdefs.ErrConflict)
		must(t, s.Engine.StartContainer(t.Context(), id))
		if out, err := run(id, "typed"); err != nil || !strings.HasSuffix(out, "typed") {
			t.Errorf("it printed %q, %v", out, err)
		}
	},
	"TheLogOfAMissingContainerIsNotFound": func(t *testing.T, s *subject) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var out bytes.Buffer
		err := s.Engine.ContainerLogs(ctx, strings.Repeat("0", 64), runtime.LogOptions{Tail: 1}, &out, &out)
		wantClass(t, err, errdefs.ErrNotFound)
	},
}

func (s *subject) volumeSpec() runtime.VolumeSpec {
	id := s.identity(runtime.RoleVolume)
	id.Service = "data"
	return runtime.VolumeSpec{Identity: id, Name: runtime.VolumeName(s.sandboxID, "data")}
}
