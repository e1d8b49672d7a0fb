// Package files implements the file calls of the supervisor's protocol. Small calls
// are answered over the link; bulk data moves in transfers on separate connections.
//
// It runs inside PID 1 of a container. So memory and threads are bounded whatever
// the number of callers and the size of files, and a panic ends only one call.
package files

import (
	"context"
	"fmt"
	"sync"

	guestv1 "github.com/agbox/agbox/proto/guestlite/v1"
)

// Threads is the maximum number of threads that the package blocks in system calls at
// once.
const Threads = 4

const (
	// maxTransfers bounds the concurrent transfers. Each uses up to about 1 MiB.
	maxTransfers = 24
	// maxWatches bounds the concurrent watches among them, because a host has few
	// inotify instances.
	maxWatches = 8
)

// Identity is a user with whose rights files are accessed.
type Identity struct {
	UID, GID int
	Groups   []int
}

// Service implements the calls. All paths are relative to the supervisor's own root.
type Service struct {
	// lookup resolves a user. Its error is a sentence for people.
	lookup func(spec string) (*Identity, error)
	// stopping is done when all transfers must end.
	stopping context.Context
	gate     chan struct{}
	// renameLocks are locks of directories, chosen by inode.
	// Held across I/O: they order the renames of written files to their final names.
	renameLocks [64]sync.Mutex

	// mu guards the fields below.
	mu                 sync.Mutex
	transfers, watches int
}

// New returns the service. Transfers end when ctx is done. lookup resolves a user;
// its error must be a sentence for people.
func New(ctx context.Context, lookup func(spec string) (*Identity, error)) *Service {
	return &Service{lookup: lookup, stopping: ctx, gate: make(chan struct{}, Threads)}
}

// actor returns an actor with the rights of the given user; empty means the
// supervisor's own rights.
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
			return "", invalid("contains a NUL byte")
		}
	}
	return string(path), nil
}

// invalidError has the end of a sentence that begins with the path.
type invalidError struct{ text string }

func (e *invalidError) Error() string { return e.text }

func invalid(format string, args ...any) error { return &invalidError{fmt.Sprintf(format, args...)} }
