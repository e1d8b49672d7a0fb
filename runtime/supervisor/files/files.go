// Package files answers the file calls of the supervisor's protocol: small ones
// at once, bulk ones as transfers on connections of their own.
//
// It runs inside PID 1 of a container: memory and threads are bounded however
// many callers there are and however large the files, and a panic ends one call.
package files

import (
	"context"
	"fmt"
	"sync"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// Threads is how many threads the package needs at once beyond those that run Go
// code.
const Threads = 4

const (
	// maxTransfers bounds the transfers at a time. Each holds up to about 1 MiB.
	maxTransfers = 24
	// maxWatches bounds those of them that watch: the inotify instances of a host
	// are few.
	maxWatches = 8
)

// Identity is whose rights are used.
type Identity struct {
	UID, GID int
	Groups   []int
}

// Service answers the calls. All paths are those of the supervisor's own root.
type Service struct {
	// lookup resolves a user; its error is a sentence.
	lookup func(spec string) (*Identity, error)
	// stopping ends when all transfers are to end.
	stopping context.Context
	gate     chan struct{}
	// settling are the locks of directories in which a written file gets its name, by
	// inode. They order the renames, so they are held across them.
	settling [64]sync.Mutex

	// mu guards the fields below.
	mu                 sync.Mutex
	transfers, watches int
}

var _ guestv1.FilesService = (*Service)(nil)

// New makes the service. Transfers end when ctx does; lookup finds a user, and its
// error is a sentence for a person.
func New(ctx context.Context, lookup func(spec string) (*Identity, error)) *Service {
	return &Service{lookup: lookup, stopping: ctx, gate: make(chan struct{}, Threads)}
}

// actor finds out whose rights a call uses; empty means the supervisor's own.
func (s *Service) actor(spec string) (*actor, *guestv1.FileError) {
	a := &actor{gate: s.gate}
	if spec == "" {
		return a, nil
	}
	var id *Identity
	err := a.do(func() (err error) {
		id, err = s.lookup(spec)
		return err
	})
	if err != nil {
		return nil, &guestv1.FileError{Kind: guestv1.FileFailure_FILE_FAILURE_USER_NOT_FOUND, Message: cut(err.Error())}
	}
	return a, a.become(id)
}

// do runs a small call.
func (s *Service) do(req *guestv1.FileRequest, what string, fn func(*FileCall) error) *guestv1.FileReply {
	a, fail := s.actor(req.GetUser())
	if fail != nil {
		return &guestv1.FileReply{Error: fail}
	}
	call := &FileCall{FileRequest: req, reply: new(guestv1.FileReply), actor: a}
	path, err := clean(req.GetPath())
	if err == nil {
		call.path = path
		err = fn(call)
	}
	if err != nil {
		return &guestv1.FileReply{Error: explain(what, req.GetPath(), err)}
	}
	return call.reply
}

// FileCall is one small call.
type FileCall struct {
	*guestv1.FileRequest
	path  string
	actor *actor
	reply *guestv1.FileReply
}

func clean(path []byte) (string, error) {
	const longest = 4095
	if len(path) == 0 || path[0] != '/' || len(path) > longest {
		return "", invalid("is not an absolute path of at most %d bytes", longest)
	}
	for _, b := range path {
		if b == 0 {
			return "", invalid("has a NUL in it")
		}
	}
	return string(path), nil
}

// invalidError continues a sentence that begins with the path.
type invalidError struct{ text string }

func (e *invalidError) Error() string { return e.text }

func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }
