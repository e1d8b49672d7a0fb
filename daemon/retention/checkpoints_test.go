package retention

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/agents/checkpoint"
	"github.com/agbox/agbox/agents/journal"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/logs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// install makes an install with the log folder of sandbox "s".
func install(t *testing.T) (*Checkpoints, paths.Install) {
	t.Helper()
	in := paths.Install{Data: t.TempDir()}
	must(t, os.MkdirAll(in.SandboxLogs("s"), 0o700))
	return NewCheckpoints(in), in
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// write writes checkpoint seq of exec "e" as a supervisor does.
func write(t *testing.T, in paths.Install, seq uint64) *journal.Mark {
	t.Helper()
	d, err := logs.OpenDir(in.SandboxLogs("s"))
	must(t, err)
	defer d.Close()
	f, err := d.CreateCheckpoint("e", nil, logs.KeepOwner)
	must(t, err)
	head := checkpoint.Head{Seq: seq, ID: fmt.Sprint("id", seq), Lineage: "a", Kind: journal.StepCheckpoint, WrittenAt: time.Unix(0, 0).UTC()}
	state := fmt.Sprintf(`{"n":%d}`, seq)
	crc, size, err := checkpoint.Write(f, head, strings.NewReader(state), int64(len(state)))
	must(t, err)
	must(t, f.Sync())
	must(t, f.Commit(seq))
	return head.Mark(crc, size)
}

func recorded(m *journal.Mark) *agboxv1.AgentCheckpoint {
	return &agboxv1.AgentCheckpoint{Seq: m.Seq, CheckpointId: m.ID, Crc32: m.CRC32, Bytes: m.Bytes, Format: checkpoint.Version}
}

func TestACopyIsTheCheckpointThatWasWritten(t *testing.T) {
	s, in := install(t)
	m := write(t, in, 3)
	for range 2 { // repeated after a crash of the daemon
		must(t, s.Take("a", "s", "e", m))
	}
	must(t, os.RemoveAll(in.SandboxLogs("s")))
	f, err := s.Current("a", recorded(m))
	must(t, err)
	defer f.Close()
	raw, err := io.ReadAll(f)
	must(t, err)
	got, err := checkpoint.Parse(raw)
	if err != nil || got.Seq != 3 || got.ID != "id3" || string(got.State) != `{"n":3}` {
		t.Errorf("the copy is %+v: %v", got, err)
	}
}

func TestForgedFilesAreNotTaken(t *testing.T) {
	s, in := install(t)
	m := write(t, in, 1)
	name := filepath.Join(in.SandboxLogs("s"), logs.CheckpointName("e", 1))
	whole, err := os.ReadFile(name)
	must(t, err)
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 4
	for _, row := range []struct {
		what  string
		forge func()
	}{
		{"truncated", func() { must(t, os.WriteFile(name, whole[:len(whole)-1], 0o600)) }},
		{"flipped", func() { must(t, os.WriteFile(name, flipped, 0o600)) }},
		{"a link", func() { must(t, os.Symlink("/etc/passwd", name)) }},
		{"a directory", func() { must(t, os.Mkdir(name, 0o700)) }},
		{"a huge file", func() { must(t, os.WriteFile(name, whole, 0o600)); must(t, os.Truncate(name, 1<<40)) }},
		{"missing", func() {}},
	} {
		must(t, os.RemoveAll(name))
		row.forge()
		if err := s.Take("a", "s", "e", m); !errors.Is(err, ErrCheckpointDamaged) {
			t.Errorf("%s: %v", row.what, err)
		}
	}
	if left, _ := os.ReadDir(in.AgentCheckpoints("a")); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if err := s.Take("a", "gone", "e", m); !errors.Is(err, ErrCheckpointDamaged) {
		t.Errorf("a sandbox without logs: %v", err)
	}
}

// Root in the sandbox can take the rights from a daemon that is not root.
func TestWhatTheDaemonMayNotReadIsDamaged(t *testing.T) {
	for _, closed := range []string{"", logs.CheckpointName("e", 1)} {
		s, in := install(t)
		m := write(t, in, 1)
		folder := in.SandboxLogs("s")
		if os.Geteuid() == 0 {
			for dir := folder; dir != filepath.Dir(os.TempDir()) && dir != os.TempDir(); dir = filepath.Dir(dir) {
				must(t, os.Chmod(dir, 0o755))
			}
		}
		must(t, os.Chmod(filepath.Join(folder, closed), 0))
		if err := asNobody(t, func() error { return s.Take("a", "s", "e", m) }); !errors.Is(err, ErrCheckpointDamaged) || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("%q without rights: %v", closed, err)
		}
		must(t, os.Chmod(folder, 0o700)) // to remove it
	}
}

// asNobody calls fn without the rights of root over files.
func asNobody(t *testing.T, fn func() error) error {
	if os.Geteuid() != 0 {
		return fn()
	}
	const nobody = 65534
	runtime.LockOSThread() // the rights are those of a thread
	defer runtime.UnlockOSThread()
	must(t, unix.Setfsuid(nobody))
	defer func() { must(t, unix.Setfsuid(0)) }()
	return fn()
}

func TestADamagedCopyIsFound(t *testing.T) {
	s, in := install(t)
	m := write(t, in, 1)
	must(t, s.Take("a", "s", "e", m))
	name := filepath.Join(in.AgentCheckpoints("a"), "1.json")
	must(t, os.Truncate(name, 5))
	if _, err := s.Open("a", recorded(m)); !errors.Is(err, ErrCheckpointDamaged) {
		t.Errorf("truncated: %v", err)
	}
	must(t, os.Remove(name))
	if _, err := s.Open("a", recorded(m)); !errors.Is(err, ErrCheckpointDamaged) {
		t.Errorf("removed: %v", err)
	}
	must(t, os.Symlink(name, name)) // an error that may pass
	if _, err := s.Open("a", recorded(m)); err == nil || errors.Is(err, ErrCheckpointDamaged) {
		t.Errorf("unreadable: %v", err)
	}
}

func TestOnlyTheGivenCheckpointsAreKept(t *testing.T) {
	s, in := install(t)
	must(t, s.Keep("a", nil))
	var kept []*agboxv1.AgentCheckpoint
	for seq := uint64(1); seq <= 4; seq++ {
		m := write(t, in, seq)
		must(t, s.Take("a", "s", "e", m))
		if seq > 2 {
			kept = append(kept, recorded(m))
		}
	}
	must(t, os.WriteFile(filepath.Join(in.AgentCheckpoints("a"), "3.json.new"), nil, 0o600)) // left by a crash
	must(t, s.Keep("a", kept))
	left, err := filepath.Glob(filepath.Join(in.AgentCheckpoints("a"), "*"))
	if err != nil || len(left) != 2 || filepath.Base(left[0]) != "3.json" || filepath.Base(left[1]) != "4.json" {
		t.Errorf("%v is left: %v", left, err)
	}
}

func TestCheckpointsWithoutARecordAreFound(t *testing.T) {
	s, in := install(t)
	for _, seq := range []uint64{9, 10, 11} {
		must(t, s.Take("a", "s", "e", write(t, in, seq)))
	}
	must(t, os.WriteFile(s.name("a", 12), []byte(`{"version":2,"seq":12`), 0o600))
	must(t, os.WriteFile(s.name("a", 13), []byte(`{"seq":13,"turn":4,"messages":[]}`), 0o600))
	must(t, os.WriteFile(s.name("a", 14)+".new", []byte(`{"version":2,"state":{}}`), 0o600))
	must(t, os.Mkdir(s.name("a", 15), 0o700))
	all := s.Found("a")
	want := []struct {
		seq    uint64
		format uint32
	}{{9, checkpoint.Version}, {10, checkpoint.Version}, {11, checkpoint.Version}, {13, 1}}
	if len(all) != len(want) {
		t.Fatalf("found %+v", all)
	}
	for i, f := range all {
		if f.Seq != want[i].seq || f.Format != want[i].format {
			t.Errorf("found %+v in format %d, want %v", f.Mark, f.Format, want[i])
		}
		file, err := s.Current("a", &agboxv1.AgentCheckpoint{Seq: f.Seq, Crc32: f.CRC32, Bytes: f.Bytes, Format: f.Format})
		must(t, err)
		must(t, file.Close())
	}
	if got := s.Found("none"); got != nil {
		t.Errorf("an agent without a folder has %+v", got)
	}
}
