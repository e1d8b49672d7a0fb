package runtimetest

import (
	"context"
	"reflect"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/internal/ids"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

var lifeCases = map[string]func(*testing.T, *subject){
	"StartAndStopCanBeRepeated": func(t *testing.T, s *subject) {
		id, _ := s.created(t)
		if state := s.inspect(t, id).State; state != runtime.StateCreated {
			t.Errorf("a new container is %q", state)
		}
		for range 2 { // a stopped container can start again
			for range 2 {
				must(t, s.Engine.StartContainer(t.Context(), id))
			}
			seen := s.inspect(t, id)
			if seen.State != runtime.StateRunning || seen.StartedAt.IsZero() || seen.PID <= 0 {
				t.Errorf("a started container is %q since %v with process %d", seen.State, seen.StartedAt, seen.PID)
			}
			for range 2 {
				must(t, s.Engine.StopContainer(t.Context(), id, 0))
			}
			seen = s.inspect(t, id)
			if seen.PID != 0 {
				t.Errorf("a stopped container has the process %d", seen.PID)
			}
			if seen.State != runtime.StateExited || seen.FinishedAt.Before(seen.StartedAt) {
				t.Errorf("a stopped container is %q since %v, it started at %v", seen.State, seen.FinishedAt, seen.StartedAt)
			}
		}
	},
	"KilledContainerKeepsItsExitCode": func(t *testing.T, s *subject) {
		id := s.started(t)
		s.Kill(t, id)
		must(t, s.Engine.StopContainer(t.Context(), id, 0))
		seen := s.inspect(t, id)
		if seen.State != runtime.StateExited || seen.ExitCode != killed || seen.OOMKilled {
			t.Errorf("after a kill it is %+v, want exited with %d", seen, killed)
		}
	},
	"AWaitEndsWithTheContainer": func(t *testing.T, s *subject) {
		id := s.started(t)
		type end struct {
			code int
			err  error
		}
		ended := make(chan end)
		go func() {
			code, err := s.Engine.WaitContainer(t.Context(), id)
			ended <- end{code, err}
		}()
		s.Kill(t, id)
		if got := <-ended; got != (end{code: killed}) {
			t.Errorf("the wait ended with %+v, want %d", got, killed)
		}
		if code, err := s.Engine.WaitContainer(t.Context(), id); code != killed || err != nil {
			t.Errorf("a wait after the end gives %d, %v", code, err)
		}
	},
	"AWaitEndsWithItsContext": func(t *testing.T, s *subject) {
		id := s.started(t)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			_, err := s.Engine.WaitContainer(ctx, id)
			ended <- err
		}()
		cancel()
		if err := <-ended; err == nil || ctx.Err() == nil {
			t.Errorf("a cancelled wait gives %v", err)
		}
	},
	"AContainerWithoutANetworkStarts": func(t *testing.T, s *subject) {
		spec := s.sleeper(s.image(t).ID, runtime.NoNetwork)
		spec.Identity, spec.Name = s.identity(runtime.RoleReclaimer), runtime.ReclaimerName(s.sandboxID)
		id := s.ensure(t, spec)
		must(t, s.Engine.StartContainer(t.Context(), id))
		if inv := s.inventory(t); len(inv.Containers) != 1 || inv.Containers[0].Role != runtime.RoleReclaimer || len(inv.Networks) > 0 {
			t.Errorf("the inventory is %+v", inv)
		}
	},
	"RunningContainerIsRemoved": func(t *testing.T, s *subject) {
		id := s.started(t)
		must(t, s.Engine.RemoveContainer(t.Context(), id))
		_, err := s.Engine.InspectContainer(t.Context(), id)
		wantClass(t, err, errdefs.ErrNotFound)
	},
	"MissingContainerIsNotFound": func(t *testing.T, s *subject) {
		missing := "3333333333333333333333333333333333333333333333333333333333333333"
		_, err := s.Engine.InspectContainer(t.Context(), missing)
		wantClass(t, err, errdefs.ErrNotFound)
		wantClass(t, s.Engine.StartContainer(t.Context(), missing), errdefs.ErrNotFound)
		_, err = s.Engine.WaitContainer(t.Context(), missing)
		wantClass(t, err, errdefs.ErrNotFound)
		must(t, s.Engine.StopContainer(t.Context(), missing, 0))
		must(t, s.Engine.RemoveContainer(t.Context(), missing))
		must(t, s.Engine.RemoveNetwork(t.Context(), missing))
	},
	"StartWithoutItsNetworkIsNotAMissingContainer": func(t *testing.T, s *subject) {
		id, spec := s.created(t)
		must(t, s.Engine.RemoveNetwork(t.Context(), spec.NetworkID))
		err := s.Engine.StartContainer(t.Context(), id)
		wantReason(t, err, agboxv1.ErrorReason_ENGINE_FAILED)
		if errdefs.IsNotFound(err) {
			t.Errorf("%v has the class of a missing container", err)
		}
	},
	"InventoryShowsStates": func(t *testing.T, s *subject) {
		id := s.started(t)
		inv := s.inventory(t)
		if len(inv.Containers) != 1 || len(inv.Networks) != 1 {
			t.Fatalf("the inventory is %+v, want one container and one network", inv)
		}
		want := runtime.Container{
			Identity: s.identity(runtime.RolePrimary), ID: id, Name: runtime.PrimaryName(s.sandboxID), State: runtime.StateRunning,
			NetworkID: inv.Networks[0].ID, Limits: runtime.MadeLimits{PIDs: runtime.DefaultPIDs},
		}
		if !reflect.DeepEqual(inv.Containers[0], want) {
			t.Errorf("the container is %+v, want %+v", inv.Containers[0], want)
		}
		wantNet := runtime.Network{Identity: s.identity(runtime.RoleNetwork), ID: inv.Networks[0].ID, Name: runtime.NetworkName(s.sandboxID), Interface: s.network(t).Interface}
		if inv.Networks[0] != wantNet || wantNet.Interface == "" {
			t.Errorf("the network is %+v, want %+v", inv.Networks[0], wantNet)
		}
		seen := s.inspect(t, id)
		if seen.Identity != want.Identity || seen.Name != want.Name || seen.ID != want.ID || seen.ImageID != s.image(t).ID {
			t.Errorf("the inspection says %+v, want %+v", seen, want)
		}
	},
}

var identityCases = map[string]func(*testing.T, *subject){
	"AForeignContainerWithOurNameIsKept": func(t *testing.T, s *subject) {
		s.wantTaken(t, runtime.Identity{})
	},
	"AnotherNonceIsForeign": func(t *testing.T, s *subject) {
		claimed := s.identity(runtime.RolePrimary)
		claimed.Nonce = ids.New()
		s.wantTaken(t, claimed)
	},
	"AnotherInstallIsForeign": func(t *testing.T, s *subject) {
		claimed := s.identity(runtime.RolePrimary)
		claimed.InstallID = ids.New()
		s.wantTaken(t, claimed)
	},
	"AForeignNetworkWithOurNameIsKept": func(t *testing.T, s *subject) {
		foreign, made := s.ForeignNetwork(t, runtime.NetworkName(s.sandboxID), runtime.Identity{})
		if !made {
			t.Fatal("the first network of a name was not made")
		}
		_, err := s.Engine.EnsureNetwork(t.Context(), s.networkSpec())
		wantReason(t, err, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE)
		wantOnly(t, s.inventory(t), nil, nil)
		if _, again := s.ForeignNetwork(t, runtime.NetworkName(s.sandboxID), s.identity(runtime.RoleNetwork)); again {
			// Both exist: ours is found, and the foreign one is not touched.
			if found := s.network(t); found.ID == foreign {
				t.Error("EnsureNetwork returned the foreign network")
			}
		}
	},
	"NetworkWithAnotherNonceIsForeign": func(t *testing.T, s *subject) {
		claimed := s.identity(runtime.RoleNetwork)
		claimed.Nonce = ids.New()
		foreign, _ := s.ForeignNetwork(t, runtime.NetworkName(s.sandboxID), claimed)
		_, err := s.Engine.EnsureNetwork(t.Context(), s.networkSpec())
		wantReason(t, err, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE)
		wantOnly(t, s.inventory(t), nil, []string{foreign})
	},
	"OfDuplicateNetworksTheOldestIsKept": func(t *testing.T, s *subject) {
		first := s.network(t)
		s.ForeignNetwork(t, first.Name, first.Identity)
		if found := s.network(t); found.ID != first.ID {
			t.Errorf("the network is %s, want the older %s", found.ID, first.ID)
		}
		wantOnly(t, s.inventory(t), nil, []string{first.ID})
	},
	"OfDuplicateNetworksTheOneOfAContainerIsKept": func(t *testing.T, s *subject) {
		first := s.network(t)
		second, made := s.ForeignNetwork(t, first.Name, first.Identity)
		if !made {
			return // such an engine allows no second network
		}
		id := s.ensure(t, s.sleeper(s.image(t).ID, second))
		if found := s.network(t); found.ID != second {
			t.Errorf("the network is %s, want that of the container, %s", found.ID, second)
		}
		wantOnly(t, s.inventory(t), []string{id}, []string{second})
		if listed, seen := s.inventory(t).Containers[0], s.inspect(t, id); listed.NetworkID != second || seen.NetworkID != second {
			t.Errorf("the container is listed with network %s and inspected with %s, want %s", listed.NetworkID, seen.NetworkID, second)
		}
		must(t, s.Engine.StartContainer(t.Context(), id))
		must(t, s.Engine.RemoveContainer(t.Context(), id)) // before its network
	},
	"InventorySeesOnlyItsInstall": func(t *testing.T, s *subject) {
		id, spec := s.created(t)
		other := s.identity(runtime.RolePrimary)
		other.InstallID = ids.New()
		s.Foreign(t, "agbox-foreign-"+s.sandboxID, other)
		wantOnly(t, s.inventory(t), []string{id}, []string{spec.NetworkID})
		inv, err := s.Engine.SandboxInventory(t.Context(), s.InstallID, "another-sandbox")
		must(t, err)
		wantOnly(t, inv, nil, nil)
	},
	"LabelsOfAnImageDoNotMakeIdentity": func(t *testing.T, s *subject) {
		claimed := s.identity(runtime.RoleService)
		claimed.SandboxID, claimed.Service = "somebody-else", "db"
		spec := s.sleeper(s.ClaimingImage(t, claimed), s.network(t).ID)
		id := s.ensure(t, spec)
		if seen := s.inspect(t, id); seen.Identity != spec.Identity {
			t.Errorf("the identity is %+v, want %+v", seen.Identity, spec.Identity)
		}
		if again := s.ensure(t, spec); again != id {
			t.Errorf("the container is not found again: %s, then %s", id, again)
		}
	},
}

// wantTaken requires that a container with the primary's name and the claimed identity
// is neither adopted nor changed.
func (s *subject) wantTaken(t *testing.T, claimed runtime.Identity) {
	t.Helper()
	spec := s.sleeper(s.image(t).ID, s.network(t).ID)
	foreign := s.Foreign(t, spec.Name, claimed)
	before := s.inspect(t, foreign)
	_, err := s.Engine.EnsureContainer(t.Context(), spec)
	wantReason(t, err, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE)
	if !errdefs.IsAlreadyExists(err) {
		t.Errorf("%v is not of class %v", err, errdefs.ErrAlreadyExists)
	}
	if after := s.inspect(t, foreign); !reflect.DeepEqual(after, before) {
		t.Errorf("the foreign container was %+v and is %+v", before, after)
	}
}
