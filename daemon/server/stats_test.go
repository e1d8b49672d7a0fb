package server

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/runtime/runtimetest"
)

// sulking is an engine that fails to measure some containers.
type sulking struct {
	*runtimetest.Fake
	silent map[string]bool
}

func (e sulking) ContainerUsage(ctx context.Context, id string) (runtime.Usage, error) {
	if e.silent[id] {
		return runtime.Usage{}, errors.New("no figures")
	}
	return e.Fake.ContainerUsage(ctx, id)
}

func TestAContainerThatCannotBeMeasuredKeepsNoOtherFromBeingShown(t *testing.T) {
	book, db := newLedger(t)
	sb, err := book.Create(t.Context(), "a", &agboxv1.CreateSpec{Image: runtimetest.FakeImage})
	if err != nil {
		t.Fatal(err)
	}
	engine := sulking{runtimetest.NewFake(), map[string]bool{}}
	image, err := engine.EnsureImage(t.Context(), runtime.ImageRequest{Ref: runtimetest.FakeImage}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var made []string
	for _, role := range []runtime.Role{runtime.RolePrimary, runtime.RoleService} {
		id, err := engine.EnsureContainer(t.Context(), runtime.ContainerSpec{
			Identity: runtime.Identity{InstallID: db.InstallID(), SandboxID: "a", Nonce: sb.Nonce, Role: role}, Name: string(role), ImageID: image.ID,
		})
		if err == nil {
			err = engine.StartContainer(t.Context(), id)
		}
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, id)
	}
	m := &meter{calls: &statsCalls{engine: engine, ledger: book, installID: db.InstallID(), log: slog.New(slog.DiscardHandler)}, before: map[string]runtime.Usage{}}
	engine.silent[made[0]] = true
	resp, err := m.round(t.Context(), nil)
	if err != nil || len(resp.GetContainers()) != 1 || resp.GetContainers()[0].GetContainerId() != made[1] {
		t.Errorf("one of two that answers gives %v, %v", resp, err)
	}
	engine.silent[made[1]] = true
	if _, err := m.round(t.Context(), nil); err == nil {
		t.Error("where none answers there is no error")
	}
}
