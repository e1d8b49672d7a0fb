package client

import (
	"context"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// SetPool makes a pool of sandboxes that are made ahead, or changes it. size is 1 to 64.
func (c *Client) SetPool(ctx context.Context, name string, size int, create *agboxv1.CreateSandboxRequest) (*agboxv1.Pool, error) {
	out, err := c.pools.SetPool(ctx, &agboxv1.SetPoolRequest{Name: name, Size: uint32(size), Create: create}, idempotent)
	return out.GetPool(), err
}

// ListPools returns all pools by name.
func (c *Client) ListPools(ctx context.Context) ([]*agboxv1.Pool, error) {
	out, err := c.pools.ListPools(ctx, &agboxv1.ListPoolsRequest{}, idempotent)
	return out.GetPools(), err
}

// RemovePool removes a pool, and what it has ready. The error has the reason POOL_NOT_FOUND if there is none.
func (c *Client) RemovePool(ctx context.Context, name string) error {
	_, err := c.pools.RemovePool(ctx, &agboxv1.RemovePoolRequest{Name: name})
	return err
}
