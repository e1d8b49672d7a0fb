package agentcli

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTheContextHookGetsWorkAndCheckpoint(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hook := func(script string) string {
		raw, err := json.Marshal([]string{"sh", "-c", script})
		if err != nil {
			t.Fatal(err)
		}
		return "AGBOX_CONTEXT_HOOK=" + string(raw)
	}
	ask := func(env ...string) (h hydrated, errs string) {
		t.Helper()
		code, out, errs := run(t, env, "hydrate")
		if err := json.Unmarshal([]byte(out), &h); code != exitOK || err != nil {
			t.Fatalf("%d, %s, %s: %v", code, out, errs, err)
		}
		return h, errs
	}
	checkpoint := "AGBOX_CHECKPOINT=" + file("checkpoint", `{"version":2,"seq":4,"checkpoint_id":"c","step":7,"state":{"x":[1]}}`)
	work := "AGBOX_WORK=" + file("work", "fix it\n")
	h, _ := ask(checkpoint, work, hook("cat"))
	var got struct {
		Work       string
		Checkpoint struct {
			Seq, Step uint64
			State     json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(h.Context), &got); err != nil || got.Work != "fix it\n" || got.Checkpoint.Seq != 4 || got.Checkpoint.Step != 7 || string(got.Checkpoint.State) != `{"x":[1]}` {
		t.Errorf("the hook got %s: %v", h.Context, err)
	}
	if h, _ := ask(hook("cat")); strings.TrimSpace(h.Context) != `{"work":null,"checkpoint":null}` {
		t.Errorf("without both the hook got %s", h.Context)
	}
	huge := "AGBOX_CHECKPOINT=" + file("huge", `{"version":2,"seq":4,"checkpoint_id":"c","state":{"x":"`+strings.Repeat("x", 1<<20)+`"}}`)
	if h, _ := ask(huge, hook("echo found")); h.Context != "found\n" || len(h.Notices) != 0 {
		t.Errorf("a hook that does not read its input: %q, %q", h.Context, h.Notices)
	}
	for name, row := range map[string]struct{ env, notice string }{
		"fails":           {hook("echo half; echo why >&2; exit 3"), "The context hook has failed (exit status 3)"},
		"prints too much": {hook("yes"), "The context hook has failed (it prints more than 1048576 bytes)"},
		"is not there":    {`AGBOX_CONTEXT_HOOK=["/none"]`, "The context hook has failed (fork/exec /none: no such file"},
		"is no command":   {`AGBOX_CONTEXT_HOOK=[]`, "The context hook has failed (AGBOX_CONTEXT_HOOK is no command)"},
	} {
		h, errs := ask(checkpoint, row.env)
		if len(h.Notices) != 1 || !strings.HasPrefix(h.Notices[0], row.notice) || h.Context != "" || h.ResumeStep != 7 {
			t.Errorf("a hook that %s: %q, %q", name, h.Notices, h.Context)
		}
		if name == "fails" && !strings.Contains(errs, "why") {
			t.Errorf("its standard error is lost: %q", errs)
		}
	}
}

func TestAContextHookThatTakesTooLongIsKilled(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pid")
	pid := ""
	for limit := 300 * time.Millisecond; pid == ""; limit *= 2 { // until the hook has come so far in time
		var h hydrated
		err := h.context(t.Context(), contextHook{limit: limit, stderr: io.Discard}, `["sh","-c","sleep 1000 & echo $! > `+name+`; wait"]`)
		if err == nil || err.Error() != "it takes longer than "+limit.String() {
			t.Fatalf("it fails with %v", err)
		}
		raw, err := os.ReadFile(name)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		pid = strings.TrimSpace(string(raw))
	}
	for {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			break // what never ends is found by the time limit of the tests
		}
		time.Sleep(time.Millisecond)
	}
}
