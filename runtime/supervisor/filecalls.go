package supervisor

import (
	"errors"

	"github.com/agbox/agbox/runtime/supervisor/files"
)

// fileUser resolves a user. The error is a sentence for people.
func (s *Supervisor) fileUser(spec string) (*files.Identity, error) {
	who, fail := s.lookupUser(spec)
	if fail != nil {
		return nil, errors.New(fail.message)
	}
	return &files.Identity{UID: who.uid, GID: who.gid, Groups: who.groups}, nil
}

// as runs fn with the rights of a user over files.
func (s *Supervisor) as(spec string, fn func() error) (err error) {
	s.files.do(func() {
		var id *files.Identity
		if id, err = s.fileUser(spec); err == nil {
			err = files.As(id, fn)
		}
	})
	return err
}
