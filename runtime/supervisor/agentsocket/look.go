package agentsocket

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/agents/journal"
)

const (
	// maxWatched is more files than an agent can hold and ask for.
	maxWatched = 128
	// maxPath bounds their paths, in bytes.
	maxPath = 512
	// maxSummed is the size of the largest file whose content is looked at, in bytes.
	maxSummed = 1 << 20
	// cgroup is the control group of the container.
	cgroup = "/sys/fs/cgroup"
)

// limitFiles have the limits of both kinds of control groups, by what they limit.
var limitFiles = map[string][]string{
	"cpu":    {"cpu.max", "cpu/cpu.cfs_quota_us"},
	"memory": {"memory.max", "memory/memory.limit_in_bytes"},
	"pids":   {"pids.max", "pids/pids.max"},
}

// As runs fn with the rights over files of a user, whom it takes as a StartRequest does.
type As func(user string, fn func() error) error

// Look says how files and limits are now, as the user may know it. If there is no such user,
// no file exists.
func Look(as As, user string, paths []string) journal.Seen {
	seen := journal.Seen{Files: make(map[string]journal.File), Limits: make(map[string]string)}
	for _, path := range paths[:min(len(paths), maxWatched)] {
		if len(path) <= maxPath {
			seen.Files[path] = journal.File{}
		}
	}
	if len(seen.Files) > 0 {
		_ = as(user, func() error {
			for path := range seen.Files {
				seen.Files[path] = lookAt(path)
			}
			return nil
		})
	}
	for name, files := range limitFiles {
		for _, file := range files {
			if raw, err := os.ReadFile(filepath.Join(cgroup, file)); err == nil && len(raw) < 64 {
				seen.Limits[name] = strings.TrimSpace(string(raw))
			}
		}
	}
	return seen
}

// lookAt describes a regular file; without a sum one that may not be read. It does not wait
// for a FIFO, and not read a device.
func lookAt(path string) journal.File {
	var st unix.Stat_t
	if !filepath.IsAbs(path) || unix.Stat(path, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return journal.File{}
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, fs.ErrPermission) {
		return described(st)
	}
	if err != nil {
		return journal.File{}
	}
	defer func() { _ = f.Close() }()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return journal.File{} // it was replaced
	}
	file := described(st)
	if st.Size <= maxSummed {
		sum := sha256.New()
		if n, err := io.Copy(sum, io.LimitReader(f, maxSummed+1)); err == nil && n == st.Size {
			file.Sum = hex.EncodeToString(sum.Sum(nil))
		}
	}
	return file
}

func described(st unix.Stat_t) journal.File {
	return journal.File{Exists: true, Size: st.Size, Modified: st.Mtim.Nano(), Inode: st.Ino}
}

// watched are the files of what an agent holds or asks for. The goroutine of a request uses
// them, under incarnation.mu.
type watched []string

// add adds the files of a manifest.
func (w watched) add(body []byte) watched {
	var asked struct {
		Manifest []struct {
			Resource string `json:"resource"`
		} `json:"manifest"`
	}
	if json.Unmarshal(body, &asked) != nil {
		return w // the daemon refuses it
	}
	for _, c := range asked.Manifest {
		path, is := strings.CutPrefix(c.Resource, "file:")
		if is && len(path) <= maxPath && len(w) < maxWatched && !slices.Contains(w, path) {
			w = append(w, path)
		}
	}
	return w
}

// picture writes to the journal how the files of the agent are, before a request that may
// pause it: what changes from then on, its program has not done.
func (in *incarnation) picture(op string, body []byte) {
	if op != "acquire" && op != "pause" {
		return
	}
	in.mu.Lock()
	if op == "acquire" {
		in.watched = in.watched.add(body)
	}
	paths := slices.Clone(in.watched)
	in.mu.Unlock()
	seen := Look(in.server.cfg.As, in.user, paths)
	_, _ = in.report(journal.Row{Op: journal.Picture, Seen: &seen}, time.Now()) // without it, the files count as not known
}
