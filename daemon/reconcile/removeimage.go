package reconcile

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/build"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// RemoveImage removes a name of an image, and the image with its last name; with onlyUnused, only
// one that agbox has built and that nothing uses. Between the look for an image and the making
// of its container no image is removed. Faults: IMAGE_IN_USE, IMAGE_NOT_FOUND.
func (l *Loop) RemoveImage(ctx context.Context, ref string, onlyUnused bool) error {
	if err := l.sameEngine(ctx); err != nil {
		return err
	}
	if !l.imagesInUse.TryLock() {
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_IN_USE,
			"The image %s stays, because a sandbox is being made, which may use it: try again when it is ready.", ref).With("image", ref)
	}
	defer l.imagesInUse.Unlock()
	all, err := l.engine.ListImages(ctx)
	if err != nil {
		return err
	}
	list := build.List(all)
	i := slices.IndexFunc(list, func(i build.Listed) bool {
		return i.ID == ref || slices.Contains(i.Names, ref) || slices.Contains(i.Names, ref+":latest")
	})
	switch {
	case i < 0:
		return fault.New(errdefs.ErrNotFound, agboxv1.ErrorReason_IMAGE_NOT_FOUND, "There is no image %s on this machine: \"agbox image ls\" shows all.", ref).With("image", ref)
	case list[i].Used, onlyUnused && (list[i].Needed || !list[i].Built):
		return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_IMAGE_IN_USE,
			"The image %s is in use: remove the sandboxes and containers that were made from it, or from an image that is based on it.", ref).With("image", ref)
	}
	return l.engine.RemoveImage(ctx, ref)
}
