package checkpoints

import (
	"os"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents/checkpoint"
)

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
