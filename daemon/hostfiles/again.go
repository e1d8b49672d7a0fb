package hostfiles

import (
	"github.com/agbox/agbox/internal/filesystem"
)

// Again opens the source of an existing container's mount, by the path that Hold had
// found. The path must lead to itself: the engine would follow a link that is there now.
func Again(path string) (*Source, error) {
	held, err := open(path)
	if err != nil {
		return nil, err
	}
	if held.Path != path {
		held.Close()
		return nil, refusal("%s leads to %s by a symbolic link that was not there when the sandbox was made: put back the folder or file, or remove the sandbox and create it again.", path, held.Path)
	}
	return held, nil
}

// Identity returns which file it is.
func (s *Source) Identity() (filesystem.FileID, error) {
	id, err := filesystem.IDOf(s.file.Fd())
	if err != nil {
		return filesystem.FileID{}, unusable(s.Path, err)
	}
	return id, nil
}

// Bounded returns why the operator's policy refuses the mount of a source; nil if it
// allows it. byTool says that a built-in tool brings it in.
func (c Checker) Bounded(held *Source, use Use, byTool bool) error {
	if why := c.Bound().Refuses(held.Path, use == Writable, byTool); why != "" {
		return refusal("%s %s is refused, because %s: name something else, or ask the operator of this machine.", use.doing(), held.Path, why)
	}
	return nil
}
