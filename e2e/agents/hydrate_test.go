package agents

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestTheNextIncarnationGoesOnFromTheCheckpoint(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `
		agbox-agent hydrate > h || exit 80
		cat h
		tool() { agbox-agent api call "{\"call\":\"$1\",\"kind\":\"tool\",\"invocation\":\"$2\",\"name\":\"mail\"}" > /dev/null || exit 81; }
		case $AGBOX_INCARNATION in
		1) for i in 1 2 3; do
				tool begin before$i; tool end before$i
				echo "{\"n\":$i}" | agbox-agent checkpoint --step $i || exit 90
			done
			tool begin mail1; tool end mail1; tool begin mail2; exit 9;;
		2) tool begin mail3; tool end mail3; exit 8;;
		3) [ -s "$AGBOX_PREVIOUS" ] && agbox-agent done complete;;
		esac`, "--in", "demo", "--retry-delay", "10ms")
	await(t, in, id, "COMPLETED")
	out := in.Agbox(t, "agent", "logs", id).Want(t, 0).Stdout
	for _, want := range []string{
		`{"checkpoint":null,"resume_step":0,"resume_point":"","state":{},"skip":[],"pending":[],"previous":null,"notices":[]}`,
		`"resume_step":3,"resume_point":"","state":{"n":3},"skip":[{"invocation":"mail1","kind":"tool","name":"mail"}],"pending":[{"invocation":"mail2","kind":"tool","name":"mail"}],"previous":{`,
		`"skip":[{"invocation":"mail1","kind":"tool","name":"mail"},{"invocation":"mail3","kind":"tool","name":"mail"}],"pending":[{"invocation":"mail2","kind":"tool","name":"mail"}],"previous":{`,
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the incarnations lack %s:\n%s", want, out)
		}
	}
	// Another agent begins with a copy, in another sandbox.
	in.Create(t, "other", harness.ImageBusybox)
	second := spawn(t, in, `agbox-agent hydrate; agbox-agent done complete`, "--in", "other", "--from", id+"@2")
	await(t, in, second, "COMPLETED")
	if out := in.Agbox(t, "agent", "logs", second).Want(t, 0).Stdout; !strings.Contains(out, `"state":{"n":2}`) {
		t.Errorf("the other agent began with %s", out)
	}
	if list := checkpointsOf(t, in, second); len(list) != 1 || list[0].GetSeq() != 1 {
		t.Errorf("its checkpoints are %v", list)
	}
	if errs := in.Agbox(t, "agent", "spawn", "--in", "other", "--from", id+"@9", "--", "true").Want(t, 3).Stderr; !strings.Contains(errs, "Checkpoint 9 of agent "+id+" is not kept") {
		t.Errorf("a checkpoint that is not there: %s", errs)
	}
}

func TestDamagedCheckpointsAreNotUsed(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "exec-logs", box)
	const saves = 6
	var ids []string
	for damaged := range saves {
		id := spawn(t, in, fmt.Sprintf(`
			if [ $AGBOX_INCARNATION = 1 ]; then
				for i in 1 2 3 4 5 6; do echo "{\"n\":$i}" | agbox-agent checkpoint --step $i || exit 90; done
				while [ ! -e /var/log/agents-sandbox/gate%d ]; do sleep 0.05; done
				exit 9
			fi
			agbox-agent hydrate && agbox-agent done complete`, damaged), "--in", "demo", "--retry-delay", "10ms")
		ids = append(ids, id)
	}
	for damaged, id := range ids {
		harness.Eventually(t, "the checkpoints are recorded", func() bool {
			list, err := in.Client(t).ListCheckpoints(harness.Bounded(t), id)
			return err == nil && len(list) == 5 && list[4].GetSeq() == saves
		})
		for back := range damaged {
			name := filepath.Join(in.Home, "data", "agents", id, "checkpoints", fmt.Sprint(saves-back, ".json"))
			raw, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			raw[len(raw)/2] ^= 1
			if err := os.WriteFile(name, raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint("gate", damaged)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for damaged, id := range ids {
		if damaged == 5 {
			a := await(t, in, id, "DEAD_LETTER")
			if want := "Checkpoint CRC mismatch for job " + id; !strings.HasSuffix(a.GetMessage(), want) || a.GetLastEnd().GetExitCode() != 1 {
				t.Errorf("without a whole checkpoint: %q, %v; want %q", a.GetMessage(), a.GetLastEnd(), want)
			}
			continue
		}
		await(t, in, id, "COMPLETED")
		if out := in.Agbox(t, "agent", "logs", id).Want(t, 0).Stdout; !strings.Contains(out, fmt.Sprintf(`"state":{"n":%d}`, saves-damaged)) {
			t.Errorf("with %d damaged ones the program got %s", damaged, out)
		}
	}
}

// TestAProgramThatDiesOfItsContextIsHandedOn: it saved nothing. The next one is told what it did,
// and the one after that is not, because the next one has saved its work.
func TestAProgramThatDiesOfItsContextIsHandedOn(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	in.Create(t, "demo", harness.ImageBusybox)
	id := spawn(t, in, `case $AGBOX_INCARNATION in
		1) agbox-agent say "looking for the bug"; agbox-agent tool --once --id look-1 grep -- echo found it
			agbox-agent step 3; agbox-agent context 101; sleep 1000;;
		2) agbox-agent hydrate > /tmp/two; agbox-agent context 80; echo '{}' | agbox-agent checkpoint; agbox-agent context 101; sleep 1000;;
		3) agbox-agent hydrate > /tmp/three; agbox-agent done complete;;
		esac`, "one", "--in", "demo")
	await(t, in, id, "COMPLETED")
	two, three := in.Must(t, "exec", "demo", "--", "cat", "/tmp/two"), in.Must(t, "exec", "demo", "--", "cat", "/tmp/three")
	for _, want := range []string{
		`"made_by":"agbox"`, `"incarnation":1`, `"context":"DEAD","context_pct":101`, `"steps":3`, `"said":[{`, `looking for the bug`,
		`"invocation":"look-1"`, `"result":"found it\n"`, `"kind":"INCARNATION_END_KIND_CONTEXT"`,
	} {
		if !strings.Contains(two, want) {
			t.Errorf("the successor is not told %s:\n%s", want, two)
		}
	}
	if strings.Contains(three, "made_by") {
		t.Errorf("a record is made for a program that has saved its work:\n%s", three)
	}
}
