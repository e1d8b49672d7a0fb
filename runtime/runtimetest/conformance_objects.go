package runtimetest

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

var objectCases = map[string]func(*testing.T, *subject){
	"InfoNamesVersions": func(t *testing.T, s *subject) {
		info, err := s.Engine.Info(t.Context())
		must(t, err)
		if info.Version == "" || info.APIVersion == "" {
			t.Errorf("Info is %+v, want both versions", info)
		}
	},
	"LocalImageIsFoundByNameAndById": func(t *testing.T, s *subject) {
		byName := s.image(t)
		byID, err := s.Engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: byName.ID}, nil)
		must(t, err)
		if byName.ID == "" || byID.ID != byName.ID {
			t.Errorf("the image has id %q by name and %q by id", byName.ID, byID.ID)
		}
	},
	"AnInvalidImageNameIsRefused": func(t *testing.T, s *subject) {
		for _, ref := range []string{"", "UPPER case", "a:b:c", "../containers/json", "a/../../version"} {
			_, err := s.Engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: ref}, nil)
			wantReason(t, err, agboxv1.ErrorReason_INVALID_REQUEST)
		}
	},
	"UnknownImageIdIsNotFound": func(t *testing.T, s *subject) {
		_, err := s.Engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: "sha256:1111111111111111111111111111111111111111111111111111111111111111"}, nil)
		wantReason(t, err, agboxv1.ErrorReason_IMAGE_NOT_FOUND)
		wantClass(t, err, errdefs.ErrNotFound)
	},
	"AFileOfAContainerThatNeverRanIsRead": func(t *testing.T, s *subject) {
		id, _ := s.created(t)
		got, err := s.Engine.ReadFile(t.Context(), id, "/etc/passwd", 1<<20)
		must(t, err)
		if !strings.HasPrefix(string(got), "root:x:0:0:") {
			t.Errorf("/etc/passwd is %q", got)
		}
		if got, err := s.Engine.ReadFile(t.Context(), id, "/etc/nothing", 1<<20); err != nil || len(got) != 0 {
			t.Errorf("a missing file gives %q, %v", got, err)
		}
		if got, err := s.Engine.ReadFile(t.Context(), id, "/etc/passwd", 4); err == nil {
			t.Errorf("a file over the limit gives %q", got)
		}
		must(t, s.Engine.RemoveContainer(t.Context(), id))
		_, err = s.Engine.ReadFile(t.Context(), id, "/etc/passwd", 1<<20)
		wantClass(t, err, errdefs.ErrNotFound)
	},
	"AFileOfAContainerThatNeverRanIsArchived": func(t *testing.T, s *subject) {
		id, _ := s.created(t)
		stream, err := s.Engine.Archive(t.Context(), id, "/etc/passwd")
		must(t, err)
		files := tar.NewReader(stream)
		h, err := files.Next()
		must(t, err)
		text, err := io.ReadAll(files)
		must(t, errors.Join(err, stream.Close()))
		if h.Name != "passwd" || !strings.HasPrefix(string(text), "root:x:0:0:") {
			t.Errorf("%s is %q", h.Name, text)
		}
		_, err = s.Engine.Archive(t.Context(), id, "/etc/nothing")
		wantClass(t, err, errdefs.ErrNotFound)
		must(t, s.Engine.RemoveContainer(t.Context(), id))
		_, err = s.Engine.Archive(t.Context(), id, "/etc/passwd")
		wantClass(t, err, errdefs.ErrNotFound)
	},
	"ContainerOfAMissingImageIsRefused": func(t *testing.T, s *subject) {
		_, err := s.Engine.EnsureContainer(t.Context(),
			s.sleeper("sha256:2222222222222222222222222222222222222222222222222222222222222222", s.network(t).ID))
		wantReason(t, err, agboxv1.ErrorReason_IMAGE_NOT_FOUND)
	},
	"EnsuringTwiceGivesTheSameObjects": func(t *testing.T, s *subject) {
		first, spec := s.created(t)
		if again := s.ensure(t, spec); again != first {
			t.Errorf("the second container is %s, the first %s", again, first)
		}
		if again := s.network(t); again.ID != spec.NetworkID {
			t.Errorf("the second network is %s, the first %s", again.ID, spec.NetworkID)
		}
		wantOnly(t, s.inventory(t), []string{first}, []string{spec.NetworkID})
	},
	"ConcurrentEnsureCreatesOneContainer": func(t *testing.T, s *subject) {
		spec := s.sleeper(s.image(t).ID, s.network(t).ID)
		var made [4]string
		var wg sync.WaitGroup
		for i := range made {
			wg.Go(func() {
				id, err := s.Engine.EnsureContainer(t.Context(), spec)
				if err != nil {
					t.Error(err)
				}
				made[i] = id
			})
		}
		wg.Wait()
		wantSame(t, "all ids", slices.Compact(made[:]), made[:1])
		wantOnly(t, s.inventory(t), made[:1], []string{spec.NetworkID})
	},
	"SandboxesHaveNetworksOfTheirOwn": func(t *testing.T, s *subject) {
		one := s.network(t)
		other := newSubject(s.Harness)
		two := other.network(t)
		if one.ID == two.ID || one.ID == "" {
			t.Fatalf("two sandboxes have the networks %q and %q", one.ID, two.ID)
		}
		inv, err := s.Engine.SandboxInventory(t.Context(), s.InstallID, s.sandboxID)
		must(t, err)
		wantOnly(t, inv, nil, []string{one.ID})
		wantOnly(t, s.inventory(t), nil, []string{one.ID, two.ID})
	},
	"RemovingTwiceIsSuccess": func(t *testing.T, s *subject) {
		id, spec := s.created(t)
		for range 2 {
			must(t, s.Engine.RemoveContainer(t.Context(), id))
			must(t, s.Engine.RemoveNetwork(t.Context(), spec.NetworkID))
		}
		wantOnly(t, s.inventory(t), nil, nil)
	},
	"NetworkWithARunningContainerIsRemoved": func(t *testing.T, s *subject) {
		id := s.started(t)
		must(t, s.Engine.RemoveNetwork(t.Context(), s.network(t).ID))
		wantOnly(t, s.inventory(t), []string{id}, nil)
	},
	"ConcurrentRemovalsAllWaitForTheEnd": func(t *testing.T, s *subject) {
		id := s.started(t)
		network := s.network(t)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := s.Engine.RemoveContainer(t.Context(), id); err != nil {
					t.Error(err)
				}
				_, err := s.Engine.InspectContainer(t.Context(), id)
				wantClass(t, err, errdefs.ErrNotFound)
			})
		}
		wg.Wait()
		wantOnly(t, s.inventory(t), nil, []string{network.ID})
	},
	"AMarkIsFoundAndInNoInventory": func(t *testing.T, s *subject) {
		marked := func(install, mark string) bool {
			is, err := s.Engine.Marked(t.Context(), install, mark)
			if err != nil {
				t.Fatal(err)
			}
			return is
		}
		if marked(s.InstallID, s.nonce) {
			t.Error("the engine has the mark before it is made")
		}
		for range 2 {
			if err := s.Engine.Mark(t.Context(), s.InstallID, s.nonce); err != nil {
				t.Fatal(err)
			}
		}
		if !marked(s.InstallID, s.nonce) || marked("another", s.nonce) || marked(s.InstallID, s.sandboxID) {
			t.Error("the mark is not found by install and name alone")
		}
		if inv := s.inventory(t); !inv.Empty() {
			t.Errorf("the mark is in the inventory %v", inv)
		}
		for range 2 {
			if err := s.Engine.Unmark(t.Context(), s.InstallID); err != nil || marked(s.InstallID, s.nonce) {
				t.Errorf("the mark is still there (%v)", err)
			}
		}
		if info, err := s.Engine.Info(t.Context()); err != nil || info.Root == "" {
			t.Errorf("the engine says %v (%v), want where its data are", info, err)
		}
	},
	"ACancelledContextIsUnavailable": func(t *testing.T, s *subject) {
		id, spec := s.created(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for verb, call := range callsOf(ctx, s, id, spec) {
			if err := call(); !errdefs.IsUnavailable(err) {
				t.Errorf("%s: the error is %v, want one of class %v", verb, err, errdefs.ErrUnavailable)
			}
		}
	},
}

// callsOf returns one call of each verb.
func callsOf(ctx context.Context, s *subject, id string, spec runtime.ContainerSpec) map[Verb]func() error {
	e := s.Engine
	return map[Verb]func() error{
		VerbPing:             func() error { return e.Ping(ctx) },
		VerbInfo:             func() error { _, err := e.Info(ctx); return err },
		VerbMark:             func() error { return e.Mark(ctx, s.InstallID, s.nonce) },
		VerbMarked:           func() error { _, err := e.Marked(ctx, s.InstallID, s.nonce); return err },
		VerbUnmark:           func() error { return e.Unmark(ctx, s.InstallID) },
		VerbEnsureImage:      func() error { _, err := e.EnsureImage(ctx, runtime.ImageRequest{Ref: s.Image}, nil); return err },
		VerbEnsureNetwork:    func() error { _, err := e.EnsureNetwork(ctx, s.networkSpec()); return err },
		VerbEnsureContainer:  func() error { _, err := e.EnsureContainer(ctx, spec); return err },
		VerbStartContainer:   func() error { return e.StartContainer(ctx, id) },
		VerbStopContainer:    func() error { return e.StopContainer(ctx, id, 0) },
		VerbRemoveContainer:  func() error { return e.RemoveContainer(ctx, id) },
		VerbRemoveNetwork:    func() error { return e.RemoveNetwork(ctx, spec.NetworkID) },
		VerbInventory:        func() error { _, err := e.Inventory(ctx, s.InstallID); return err },
		VerbSandboxInventory: func() error { _, err := e.SandboxInventory(ctx, s.InstallID, s.sandboxID); return err },
		VerbInspectContainer: func() error { _, err := e.InspectContainer(ctx, id); return err },
		VerbAbilities:        func() error { _, err := e.Abilities(ctx); return err },
		VerbRemoveImage:      func() error { return e.RemoveImage(ctx, "agbox-conformance/none:1") },
		VerbListImages:       func() error { _, err := e.ListImages(ctx); return err },
		VerbContainerUsage:   func() error { _, err := e.ContainerUsage(ctx, id); return err },
		VerbEvents: func() error {
			return e.Events(ctx, s.InstallID, time.Time{}, func() {}, func(runtime.Event) {})
		},
	}
}
