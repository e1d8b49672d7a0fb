package agents

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAgentsGoOnAfterTheDatabaseWasLost(t *testing.T) {
	t.Parallel()
	in := harness.New(t)
	box := in.Create(t, "demo", harness.ImageBusybox)
	folder := filepath.Join(in.Home, "data", "exec-logs", box)
	id := spawn(t, in, `agbox-agent usage 1000 10 0.5 && agbox-agent step
		echo '{"n":'$AGBOX_INCARNATION'}' | agbox-agent checkpoint
		[ $AGBOX_INCARNATION = 1 ] && exit 4
		cd /var/log/agents-sandbox; touch second; while [ ! -e gate ]; do sleep 0.05; done
		agbox-agent usage 2000 20 1.5 && agbox-agent done complete "all is well"`,
		"fixer", "--in", "demo", "--class", "coder", "--retry-delay", "10ms")
	ended := spawn(t, in, "true", "other", "--in", "demo")
	await(t, in, ended, "COMPLETED")
	file := filepath.Join(t.TempDir(), "work")
	if err := os.WriteFile(file, []byte("do it"), 0o600); err != nil {
		t.Fatal(err)
	}
	next := spawn(t, in, `[ "$(cat $AGBOX_WORK)" = "do it" ]`, "next", "--in", "demo", "--after", "fixer", "--work", file)
	meta := func(id string) string { return filepath.Join(in.Home, "data", "agents", id, "meta.json") }
	exists := func(file string) bool { _, err := os.Stat(file); return err == nil }
	harness.Eventually(t, "the second incarnation works", func() bool { return exists(filepath.Join(folder, "second")) })
	harness.Eventually(t, "the file of the agent that has ended is removed", func() bool { return !exists(meta(ended)) })
	harness.Eventually(t, "the agent that has not begun is described", func() bool { return exists(meta(next)) })
	in.KillDaemon(t)
	if err := os.Rename(filepath.Join(in.Home, "data", "ids.db"), filepath.Join(in.Home, "lost.db")); err != nil {
		t.Fatal(err)
	}
	said := in.Agbox(t, "doctor", "--fix").Stdout
	if !strings.Contains(said, "It is adopted with its incarnation 2; its earlier history is lost.") || !strings.Contains(said, "It is adopted; it had not begun.") || strings.Contains(said, ended) {
		t.Fatalf("doctor says\n%s", said)
	}
	if err := os.WriteFile(filepath.Join(folder, "gate"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	in.Must(t, "daemon", "start")
	a := await(t, in, "fixer", "COMPLETED")
	total := a.GetProgress().GetTotal()
	if a.GetAgentId() != id || a.GetClass() != "coder" || a.GetIncarnation() != 2 || a.GetCrashes() != 1 || a.GetMessage() != "all is well" ||
		total.GetInputTokens() != 3000 || total.GetCostMicroUsd() != 2_000_000 || a.GetProgress().GetSteps() != 2 {
		t.Errorf("the adopted agent is %v", a)
	}
	if list := in.Must(t, "agent", "checkpoints", "fixer"); strings.Count(list, "\n") != 2 {
		t.Errorf("its checkpoints are\n%s\nwant both", list)
	}
	if state := in.Must(t, "agent", "checkpoints", "fixer", "1"); !strings.Contains(state, `"n":1`) {
		t.Errorf("checkpoint 1 is %s", state)
	}
	await(t, in, "next", "COMPLETED")
	harness.Eventually(t, "its file is removed", func() bool { return !exists(meta(id)) })
}
