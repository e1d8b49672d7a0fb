package agentsocket

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/agents/gate"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/runtime/supervisor/probes"
)

// maxHeap bounds what is believed of a heap, in MB.
const maxHeap = 1e9

// felt keeps what a beat says about the health of its program.
func (in *incarnation) felt(m metrics) {
	in.server.changed(in, func(p *pulse) {
		p.lag = time.Duration(min(max(0, m.EventLoopLag), time.Hour.Seconds()) * float64(time.Second))
		p.poolEmpty = m.FreeConnections != nil && *m.FreeConnections < 1
		if m.HeapUsed != nil {
			heap := uint64(math.Round(min(max(0, *m.HeapUsed), maxHeap)))
			p.heap = &heap
		}
	})
}

// health answers the op health. It is no report: that somebody asks does not show that the
// program works.
func (in *incarnation) health(now time.Time) gate.Health {
	r := in.reported(now)
	return gate.Health{State: r.State, SilentMS: r.Silent.Milliseconds(), Alive: r.Alive(), Ready: r.Ready()}
}

// reported is what the program has reported last.
func (in *incarnation) reported(now time.Time) probes.Reported {
	in.server.mu.Lock()
	defer in.server.mu.Unlock()
	return probes.Reported{State: in.pulse.lifecycle, Silent: in.news(now).Silent, Lag: in.pulse.lag, PoolEmpty: in.pulse.poolEmpty}
}

// Reported returns what the program of an exec has reported last. It is zero for an exec
// that is no running incarnation.
func (s *Server) Reported(execID string) probes.Reported {
	if in := s.of(execID); in != nil {
		return in.reported(time.Now())
	}
	return probes.Reported{}
}

// Ready tells followers the result of the readiness probe of an exec.
func (s *Server) Ready(execID string, ready bool) {
	if in := s.of(execID); in != nil {
		s.changed(in, func(p *pulse) { p.ready, p.changes = &ready, p.changes+1 })
	}
}

// of returns the running incarnation that is an exec, or nil.
func (s *Server) of(execID string) *incarnation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byToken[s.byExec[execID]]
}

// limitFiles have the limits of both kinds of control groups, by what they limit.
var limitFiles = map[string][]string{
	"cpu":    {"cpu.max", "cpu/cpu.cfs_quota_us"},
	"memory": {"memory.max", "memory/memory.limit_in_bytes"},
	"pids":   {"pids.max", "pids/pids.max"},
}

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

// unhealthy is the number of Heartbeat.Silences after which an incarnation is UNHEALTHY, and is
// asked for a checkpoint: it may be lost soon.
const unhealthy = 2

// beaten notes a beat.
func (s *Server) beaten(in *incarnation, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &in.pulse
	first, late := p.beat.IsZero(), p.silences > 0
	p.beat, p.beats, p.hung = now, p.beats+1, false
	if first || late { // otherwise the timer notices the beat when it fires
		s.measureLocked(in, now)
	}
	s.wakeLocked()
}

// keepBeat writes a beat to disk if the one that is there is old. A beat that cannot be
// written counts nevertheless: followers are told. mu is held.
func (in *incarnation) keepBeat(now time.Time) {
	if !in.kept.IsZero() && now.Sub(in.kept) < in.heartbeat.Durable {
		return
	}
	record, err := journal.LastBeat{At: now.UnixMilli(), Lifecycle: in.sum.Lifecycle}.Encode()
	if err != nil {
		return
	}
	in.server.cfg.Disk(func() {
		if in.beats == nil {
			if in.beats, err = in.server.cfg.Logs.CreateBeat(in.execID, in.server.cfg.Owner); err != nil {
				return
			}
		}
		err = in.beats.Write(record)
	})
	if err == nil {
		in.kept = now
	}
}

// measureLocked tells the followers if an incarnation has begun or ended to be silent for
// long, and sets the timer for the next silence.
func (s *Server) measureLocked(in *incarnation, now time.Time) {
	if in.alarm != nil {
		in.alarm.Stop()
	}
	if p := &in.pulse; s.closed || p.ended || p.beat.IsZero() && !in.heartbeat.Required {
		return
	}
	silent, lasted := in.news(now).Silent, 0
	for lasted < len(in.heartbeat.Silences) && silent >= in.heartbeat.Silences[lasted] {
		lasted++
	}
	if p := &in.pulse; p.silences != lasted {
		p.save = p.save || lasted >= unhealthy
		p.silences = lasted
		p.changes++
		s.wakeLocked()
	}
	if in.heartbeat.HungAfter > 0 && silent >= in.heartbeat.HungAfter && !in.probing {
		in.probing = true
		s.work.Go(func() { s.probe(in) })
	}
	if lasted == len(in.heartbeat.Silences) {
		return
	}
	// The function of the timer only measures, so nobody waits for it.
	in.alarm = time.AfterFunc(in.heartbeat.Silences[lasted]-silent, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.measureLocked(in, time.Now())
	})
}

// probe looks at the processes of a silent incarnation once in an interval between beats,
// until it beats or ends. Close waits for it.
func (s *Server) probe(in *incarnation) {
	var before Activity
	for first := true; ; first = false {
		now := s.cfg.Look(in.execID)
		if !s.probed(in, now.Stopped || !first && now.Work == before.Work) {
			return
		}
		before = now
		pause := time.NewTimer(in.heartbeat.Interval)
		select {
		case <-pause.C:
		case <-in.done:
			pause.Stop()
			return
		case <-s.closing:
			pause.Stop()
			return
		}
	}
}

// probed notes what a look at the processes gave. It returns false if there is no reason
// for another one.
func (s *Server) probed(in *incarnation, hung bool) (again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &in.pulse
	if s.closed || p.ended || in.news(time.Now()).Silent < in.heartbeat.HungAfter {
		in.probing = false
		return false
	}
	if p.hung != hung {
		p.hung = hung
		p.changes++
		s.wakeLocked()
	}
	return true
}
