package client

import "github.com/agbox/agbox/internal/ids"

// NewID returns a random id for a sandbox or an exec. A caller that chooses the id itself
// knows it even if the answer to its request is lost.
func NewID() string { return ids.New() }
