package agentsocket

import (
	"os"
	"path/filepath"
)

// workName is the folder with the work of the running incarnations, by exec id.
const workName = "work"

// hydrateName is the folder in which the daemon places the checkpoints and journals that
// incarnations begin with, by exec id.
const hydrateName = "hydrate"

// placeWork writes the work of an incarnation into a file that every user of the sandbox
// may read, and returns its path. Without work the path is empty.
func (s *Server) placeWork(b Boot) (string, error) {
	if b.Work == nil {
		return "", nil
	}
	path := s.workPath(b.ExecID)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	if err := os.WriteFile(path, b.Work, 0o644); err != nil { //nolint:gosec // see above
		return "", err
	}
	return path, nil
}

// removeWork removes what placeWork has written, and what the daemon has placed.
func (s *Server) removeWork(execID string) {
	_ = os.Remove(s.workPath(execID)) // in memory, and usually not there
	_ = os.RemoveAll(filepath.Join(s.cfg.Dir, hydrateName, execID))
}

func (s *Server) workPath(execID string) string {
	return filepath.Join(s.cfg.Dir, workName, execID)
}
