package docker

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
)

// labelMark has the install id of a mark. A mark has none of the other labels, so it is in
// no inventory, and a daemon that does not know marks leaves it alone.
const labelMark = "agbox.engine-of"

// markName returns the name of the volume that is the mark. It stays empty.
func markName(mark string) string { return "agbox-engine-" + mark }

// Mark makes the mark of an install in the engine, or finds it. The mark is random.
func (e *Engine) Mark(ctx context.Context, installID, mark string) error {
	return e.call(ctx, "create a volume", func(cli *client.Client) error {
		_, err := cli.VolumeCreate(ctx, volume.CreateOptions{Name: markName(mark), Labels: map[string]string{labelMark: installID}})
		return err
	})
}

// Marked reports whether the engine has the mark.
func (e *Engine) Marked(ctx context.Context, installID, mark string) (bool, error) {
	var marked bool
	err := e.call(ctx, "look at a volume", func(cli *client.Client) error {
		found, err := cli.VolumeInspect(ctx, markName(mark))
		marked = err == nil && found.Labels[labelMark] == installID
		return err
	})
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	return marked, err
}

// Unmark removes all marks of an install.
func (e *Engine) Unmark(ctx context.Context, installID string) error {
	var found volume.ListResponse
	err := e.call(ctx, "list its volumes", func(cli *client.Client) (err error) {
		found, err = cli.VolumeList(ctx, volume.ListOptions{Filters: filters.NewArgs(filters.Arg("label", labelMark+"="+installID))})
		return err
	})
	for _, v := range found.Volumes {
		err = errors.Join(err, e.RemoveVolume(ctx, v.Name))
	}
	return err
}
