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

// EnsureVolume creates the volume, or finds the one that it created before, with the
// same name and identity. It fails with the fault NAME_TAKEN_IN_ENGINE if a foreign
// volume has the name.
func (e *Engine) EnsureVolume(ctx context.Context, spec runtime.VolumeSpec) error {
	return e.call(ctx, "create the volume", func(cli *client.Client) error {
		made, err := cli.VolumeCreate(ctx, volume.CreateOptions{Name: spec.Name, Labels: encodeLabels(spec.Identity)})
		if err != nil {
			return err
		}
		// If a volume of that name exists, the engine returns it, whoever created it.
		if id, ok := decodeLabels(made.Labels); !ok || id != spec.Identity {
			return fault.New(errdefs.ErrAlreadyExists, agboxv1.ErrorReason_NAME_TAKEN_IN_ENGINE,
				"Docker has a volume %q that is not this sandbox's: remove it ('docker volume rm %s'), or choose another sandbox id.", spec.Name, spec.Name)
		}
		return nil
	})
}

// RemoveVolume removes a volume and its content. It succeeds if the volume does not
// exist, and fails with errdefs.ErrConflict if a container still uses it.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	err := e.call(ctx, "remove the volume", func(cli *client.Client) error {
		return cli.VolumeRemove(ctx, name, true)
	})
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err):
		return fault.New(errdefs.ErrConflict, agboxv1.ErrorReason_ENGINE_FAILED,
			"Docker could not remove the volume %s, because a container that does not belong to the sandbox uses it: find that container with 'docker ps -a --filter volume=%s' and remove it; agbox then continues.",
			name, name).Because(err)
	}
	return err
}
