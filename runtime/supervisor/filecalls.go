package supervisor

import (
	"context"
	"errors"

	"github.com/containerd/ttrpc"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
	"github.com/agbox/agbox/runtime/supervisor/files"
)

// serveFiles adds the file calls to the server, and the transfers to the listener.
// Transfers end with ctx.
func (s *Supervisor) serveFiles(ctx context.Context, server *ttrpc.Server, ln *listener) {
	service := files.New(ctx, func(spec string) (*files.Identity, error) {
		who, fail := s.lookupUser(spec)
		if fail != nil {
			return nil, errors.New(fail.message)
		}
		return &files.Identity{UID: who.uid, GID: who.gid, Groups: who.groups}, nil
	})
	guestv1.RegisterFilesService(server, service)
	ln.transfer = service.Serve
}
