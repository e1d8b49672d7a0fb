package agents

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// checkpointsOf lists the checkpoints of an agent, and compares each with its file.
func checkpointsOf(t *testing.T, in *harness.Install, id string) []*agboxv1.AgentCheckpoint {
	t.Helper()
	list, err := in.Client(t).ListCheckpoints(harness.Bounded(t), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		raw, err := os.ReadFile(filepath.Join(in.Home, "data", "agents", id, "checkpoints", fmt.Sprint(c.GetSeq(), ".json")))
		if err != nil || crc32.ChecksumIEEE(raw) != c.GetCrc32() || uint64(len(raw)) != c.GetBytes() {
			t.Errorf("checkpoint %d has %d bytes (%v); recorded is %v", c.GetSeq(), len(raw), err, c)
		}
		if got := in.Agbox(t, "agent", "checkpoints", id, fmt.Sprint(c.GetSeq())).Want(t, 0).Stdout; got != string(raw) {
			t.Errorf("checkpoint %d is printed as %q", c.GetSeq(), got)
		}
	}
	return list
}

func TestCheckpointsAreKeptByTheDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `
		for i in 1 2 3 4 5 6 7; do
			agbox-agent usage $((i * 10)) $i || exit 90
			echo "{\"messages\": [$i], \"loop\": {}}" | agbox-agent checkpoint --kind turn --turn $i --step 2 --resume-point "after $i" || exit 91
		done
		echo '[]' | agbox-agent checkpoint; [ $? = 4 ] || exit 92
		head -c 16777217 /dev/zero > /tmp/large; agbox-agent checkpoint /tmp/large; [ $? = 1 ] || exit 93
		agbox-agent done complete fine`, "--in", "demo", "--model", "m-1")
	await(t, in, id, "COMPLETED")
	list := checkpointsOf(t, in, id)
	if len(list) != 5 || list[0].GetSeq() != 3 || list[4].GetSeq() != 7 || list[4].GetTurn() != 7 || list[4].GetResumePoint() != "after 7" {
		t.Errorf("the checkpoints are %v", list)
	}
	_, raw, err := in.Client(t).GetCheckpoint(harness.Bounded(t), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if state := fmt.Sprint(file["state"]); file["version"] != 2.0 || file["lineage_id"] != id || file["model"] != "m-1" || file["kind"] != "turn" || file["seq"] != 7.0 ||
		state != "map[loop:map[] messages:[7]]" || fmt.Sprint(file["usage"]) != "map[cost_micro_usd:0 input_tokens:70 output_tokens:7]" {
		t.Errorf("the newest is %s", raw)
	}
	if left, _ := filepath.Glob(filepath.Join(in.Home, "data", "exec-logs", box, "*ckpt*")); len(left) > 0 {
		t.Errorf("files that were copied are left: %v", left)
	}
	in.Must(t, "agent", "rm", id)
	if left, _ := os.ReadDir(filepath.Join(in.Home, "data", "agents", id)); len(left) > 0 {
		t.Errorf("the removed agent left %v", left)
	}
}

func TestACheckpointNeedsNoDaemon(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "exec-logs", box)
	exists := func(name string) func() bool {
		return func() bool { _, err := os.Stat(filepath.Join(folder, name)); return err == nil }
	}
	id := spawn(t, in, `cd /var/log/agents-sandbox; echo '{"n":1}' | agbox-agent checkpoint && touch ready
		while [ ! -e gate ]; do sleep 0.05; done
		for i in 2 3 4 5 6 7 8 9; do echo "{\"n\":$i}" | agbox-agent checkpoint || exit 90; done
		touch saved; agbox-agent done complete`, "--in", "demo")
	harness.Eventually(t, "the program works", exists("ready"))
	in.KillDaemon(t)
	if err := os.WriteFile(filepath.Join(folder, "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "checkpoints are saved without a daemon", exists("saved"))
	in.Must(t, "agent", "ls") // starts the daemon
	await(t, in, id, "COMPLETED")
	if list := checkpointsOf(t, in, id); len(list) != 5 || list[0].GetSeq() != 5 || list[4].GetSeq() != 9 {
		t.Errorf("the checkpoints are %v", list)
	}
}

func TestForgedCheckpointsCostOnlyTheirAgent(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	// The daemon is away while the files are forged.
	folder := filepath.Join(in.Home, "data", "exec-logs", box)
	var ids []string
	for n, forge := range []string{
		`rm $f; ln -s /etc/passwd $f`, `rm $f; mkfifo $f`, `truncate -s 8796093022208 $f 2>/dev/null || truncate -s 1099511627776 $f`, `truncate -s 5 $f`, `rm $f`,
	} {
		ids = append(ids, spawn(t, in, fmt.Sprintf(`cd /var/log/agents-sandbox; touch up%d; while [ ! -e gate ]; do sleep 0.05; done
			for i in 1 2; do echo "{\"n\":$i}" | agbox-agent checkpoint || exit 90; done
			f=$AGBOX_EXEC_ID.ckpt-2.json; %s; agbox-agent done complete; touch ready%d`, n, forge, n), "--in", "demo"))
	}
	all := func(name string) func() bool {
		return func() bool {
			for n := range ids {
				if _, err := os.Stat(filepath.Join(folder, fmt.Sprint(name, n))); err != nil {
					return false
				}
			}
			return true
		}
	}
	harness.Eventually(t, "the programs run", all("up"))
	in.KillDaemon(t)
	if err := os.WriteFile(filepath.Join(folder, "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the files are forged", all("ready"))
	in.Must(t, "agent", "ls")
	for _, id := range ids {
		if a := await(t, in, id, "COMPLETED"); a.GetCheckpoint().GetSeq() != 2 {
			t.Errorf("the newest checkpoint is %v", a.GetCheckpoint())
		}
		c, _, err := in.Client(t).GetCheckpoint(harness.Bounded(t), id, 0)
		if err != nil || c.GetSeq() != 1 {
			t.Errorf("the newest whole checkpoint is %v, %v", c, err)
		}
		if errs := in.Agbox(t, "agent", "checkpoints", id, "2").Want(t, 1).Stderr; !strings.Contains(errs, "Checkpoint CRC mismatch for job "+id) {
			t.Errorf("the damaged one: %s", errs)
		}
	}
}
