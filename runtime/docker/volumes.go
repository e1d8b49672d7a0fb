package docker

import (
	"context"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
)

// EnsureVolume makes the volume, or finds the one that it made before: same name
// and identity. It fails with the fault NAME_TAKEN_IN_ENGINE for a foreign one.
func (e *Engine) EnsureVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	return e.call(ctx, "create the volume", func(cli *client.Client) error {
		made, err := cli.VolumeCreate(ctx, volume.CreateOptions{Name: spec.Name, Labels: encodeLabels(spec.Identity)})
		if err != nil {
			return err
		}
		// The engine hands out the one that is there already, whosever it is.
		if id, ok := decodeLabels(made.Labels); !ok || id != spec.Identity {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE,
				"Docker has a volume %q that is not this sandbox's: remove it ('docker volume rm %s'), or choose another sandbox id.", spec.Name, spec.Name)
		}
		return nil
	})
}

// RemoveVolume removes a volume with what is in it; one that is gone is success. No
// container may use it any more.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	err := e.call(ctx, "remove the volume", func(cli *client.Client) error {
		return cli.VolumeRemove(ctx, name, true)
	})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err):
		return fault.New(errdefs.ErrConflict, agboxv1.ErrorReason_ENGINE_FAILED,
			"Docker could not remove the volume %s, because a container that is not the sandbox's uses it: 'docker ps -a --filter volume=%s' shows it; remove that, and the rest follows.",
			name, name).Because(err)
	}
	return err
}
