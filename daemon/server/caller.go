package server

import (
	"context"
	"net"
	"os"

	"github.com/moby/sys/user"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/proto/agbox/caller"
)

// firstOwnField is the first number of a field that is not in the published contract.
const firstOwnField = 50

// identified returns the context of a call with who makes it. A call without caller.Header is
// of a client of the published contract, unless its request has a field of ours: clients of
// ours that are older than the header send a request key. req is nil for a stream.
func identified(ctx context.Context, req any) context.Context {
	who := caller.Caller{User: peerUser(ctx)}
	if len(metadata.ValueFromIncomingContext(ctx, caller.Header)) == 0 {
		msg, ok := req.(proto.Message)
		who.Published = !ok || !usesOwnFields(msg.ProtoReflect())
	}
	return caller.With(ctx, who)
}

// usesOwnFields reports whether a field of ours is set in a message of ours, or in one below.
func usesOwnFields(m protoreflect.Message) bool {
	own := false
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Number() >= firstOwnField:
			own = true
		case f.Kind() != protoreflect.MessageKind || f.IsMap():
		case f.IsList():
			for i := 0; i < v.List().Len() && !own; i++ {
				own = usesOwnFields(v.List().Get(i).Message())
			}
		default:
			own = usesOwnFields(v.Message())
		}
		return !own
	})
	return own
}

// callerAddr is the address of a peer whose user the kernel has named.
type callerAddr struct {
	net.Addr
	uid int
}

func peerUser(ctx context.Context) *int {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return nil
	}
	addr, ok := p.Addr.(callerAddr)
	if !ok {
		return nil
	}
	return &addr.uid
}

// withHome returns the request with the home of the caller if it does not say which: clients
// of the published contract cannot. What is below it is checked like any other path.
func withHome(ctx context.Context, req *agboxv1.CreateSandboxRequest) *agboxv1.CreateSandboxRequest {
	uid := caller.Of(ctx).User
	if req == nil || req.GetHomeDir() != "" || uid == nil {
		return req
	}
	home := homeOf(*uid)
	if home == "" {
		return req
	}
	req = proto.CloneOf(req)
	req.HomeDir = home
	return req
}

// homeOf returns the home of a user by /etc/passwd. A user of the daemon's own that is not
// there, as one of a directory service, has the daemon's.
func homeOf(uid int) string {
	if u, err := user.LookupUid(uid); err == nil {
		return u.Home
	}
	if home, err := os.UserHomeDir(); err == nil && uid == os.Getuid() {
		return home
	}
	return ""
}
