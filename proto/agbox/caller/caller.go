// Package caller says who makes a call of the API: a client of ours, or one that others made
// for the published contract. docs/contract.md has what a daemon does otherwise for the second.
package caller

import "context"

// Header is the key of the metadata that clients of ours send with each call. Its value is
// Version.
const Header = "agbox-client"

// Version is what a client of ours knows of the API. It grows when a daemon must tell older
// clients of ours apart.
const Version = "1"

// MaxAnswer is the maximum size of an answer to a client of ours in bytes. It allows lists of
// tens of thousands of sandboxes. Other clients accept 4 MiB, the default of gRPC, which
// suffices for about ten thousand.
const MaxAnswer = 64 << 20

// Caller is who makes a call. The zero value is a client of ours whose user is unknown.
type Caller struct {
	// Published is true for a client of the published contract.
	Published bool
	// User is the id of the user whose process has connected, by the kernel's word; nil if it
	// is unknown.
	User *int
}

type key struct{}

// With returns the context of a call by c.
func With(ctx context.Context, c Caller) context.Context { return context.WithValue(ctx, key{}, c) }

// Of returns who makes the call with a context. Work that no call asked for is ours.
func Of(ctx context.Context) Caller {
	c, _ := ctx.Value(key{}).(Caller)
	return c
}
