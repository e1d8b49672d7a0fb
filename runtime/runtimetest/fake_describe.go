package runtimetest

import (
	"context"

	"github.com/agbox/agbox/runtime"
)

// DescribeContainer says what a container was created from.
func (f *Fake) DescribeContainer(ctx context.Context, id string) (runtime.Description, error) {
	var d runtime.Description
	err := f.do(ctx, VerbInspectContainer, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		c := f.containers[id]
		if c == nil {
			return noContainer(id)
		}
		d = runtime.Description{ContainerSpec: c.spec, ImageName: c.spec.ImageID, Image: runtime.Image{ID: c.spec.ImageID}}
		for _, ref := range sortedKeys(f.images) {
			if image := f.images[ref]; image.ID == c.spec.ImageID {
				d.ImageName, d.Image = ref, image
				break
			}
		}
		return nil
	})
	return d, err
}

// OtherInstalls counts the containers whose labels name another install.
func (f *Fake) OtherInstalls(ctx context.Context, installID string) (int, error) {
	count := 0
	err := f.do(ctx, VerbInventory, func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		count = 0
		for _, c := range f.containers {
			if c.InstallID != "" && c.InstallID != installID {
				count++
			}
		}
		return nil
	})
	return count, err
}
