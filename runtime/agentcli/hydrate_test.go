package agentcli

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestHydrateShowsWhatIsNeededToGoOn(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	hydrated := func(env ...string) (code int, h hydrated, errs string) {
		code, out, errs := run(t, env, "hydrate")
		if code == exitOK {
			if err := json.Unmarshal([]byte(out), &h); err != nil {
				t.Fatalf("%s: %v", out, err)
			}
		}
		return code, h, errs
	}
	checkpoint := file("checkpoint", `{"version":2,"seq":4,"checkpoint_id":"c","step":7,"resume_point":"here","state":{"x":[1]}}`)
	journal := file("journal", `{"op":"checkpoint","checkpoint":{"seq":4,"id":"c"}}
{"op":"call","phase":"begin","kind":"tool","invocation":"1","name":"a"}
{"op":"call","phase":"end","kind":"tool","invocation":"1","name":"a"}
{"op":"call","phase":"begin","kind":"tool","invocation":"2","name":"b"}
{"op":"call","phase":"abort","kind":"tool","invocation":"2","name":"b"}
{"op":"call","phase":"begin","kind":"tool","invocation":"3","name":"c"}
{"op":"call","phase":"end","kind":"tool","invocation":"3","name":"c","reason":"exit code 1"}
`)
	previous := file("previous", `{"exit_code": 9}`)
	code, h, _ := hydrated("AGBOX_CHECKPOINT="+checkpoint, "AGBOX_JOURNAL="+journal, "AGBOX_PREVIOUS="+previous, "AGBOX_WORK=/w")
	if code != exitOK || h.Checkpoint.ID != "c" || h.ResumeStep != 7 || h.ResumePoint != "here" || string(h.State) != `{"x":[1]}` || h.Work != "/w" ||
		len(h.Skip) != 1 || h.Skip[0] != (call{Invocation: "1", Kind: "tool", Name: "a"}) || len(h.Pending) != 2 || h.Pending[0].Invocation != "2" || h.Pending[1].Invocation != "3" ||
		string(h.Previous) != `{"exit_code":9}` || len(h.Notices) != 0 {
		t.Errorf("%d: %+v", code, h)
	}
	if code, h, _ = hydrated("AGBOX_HANDOFF=" + file("handoff", `{"made_by": "agbox"}`)); code != exitOK || string(h.Handoff) != `{"made_by":"agbox"}` || len(h.Notices) != 0 {
		t.Errorf("a handoff: %d, %+v", code, h)
	}
	if code, h, _ = hydrated("AGBOX_HANDOFF=" + file("bad-handoff", `{"made_by`)); code != exitOK || h.Handoff != nil || len(h.Notices) != 1 {
		t.Errorf("a handoff that is none: %d, %+v", code, h)
	}
	again := file("again", `{"op":"call","phase":"begin","kind":"tool","invocation":"1","name":"a"}
{"op":"call","phase":"end","kind":"tool","invocation":"1","name":"a"}
{"op":"call","phase":"begin","kind":"tool","invocation":"1","name":"b"}
`)
	if _, h, _ := hydrated("AGBOX_JOURNAL=" + again); len(h.Skip) != 0 || len(h.Pending) != 1 || h.Pending[0] != (call{Invocation: "1", Kind: "tool", Name: "b"}) {
		t.Errorf("a second call with the id of one that has ended: skip %v, pending %v", h.Skip, h.Pending)
	}
	code, h, _ = hydrated()
	if code != exitOK || h.Checkpoint != nil || h.ResumeStep != 0 || string(h.State) != "{}" || len(h.Notices) != 0 {
		t.Errorf("the first incarnation: %d, %+v", code, h)
	}
	for _, bad := range []string{filepath.Join(dir, "none"), file("torn", `{"op":"ca`)} {
		code, h, _ = hydrated("AGBOX_CHECKPOINT="+checkpoint, "AGBOX_JOURNAL="+bad, "AGBOX_PREVIOUS="+bad)
		if code != exitOK || h.ResumeStep != 7 || len(h.Skip)+len(h.Pending) != 0 || len(h.Notices) != 2 {
			t.Errorf("a bad journal: %d, %+v", code, h)
		}
	}
	code, _, errs := hydrated("AGBOX_CHECKPOINT=" + file("bad", `{"version":9}`))
	if code != exitFailed || !strings.Contains(errs, "version 9") {
		t.Errorf("a bad checkpoint: %d, %s", code, errs)
	}
}

func TestHydrateHasTheResultsOfCalls(t *testing.T) {
	name := filepath.Join(t.TempDir(), "journal")
	end := func(id, more string) string {
		return `{"op":"call","phase":"begin","kind":"llm","invocation":"` + id + `"}` + "\n" + `{"op":"call","phase":"end","kind":"llm","invocation":"` + id + `"` + more + "}\n"
	}
	rows := end("text", `,"result":"YcOkCg==","result_bytes":4`) + end("binary", `,"result":"/w==","result_bytes":1`) + end("cut", `,"result":"YQ==","result_bytes":70000`) +
		end("dropped", `,"result_bytes":9`) + end("empty", `,"result_bytes":0`) + end("none", ``)
	if err := os.WriteFile(name, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	_, out, _ := run(t, []string{"AGBOX_JOURNAL=" + name}, "hydrate")
	var got struct{ Skip json.RawMessage }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	want := `[{"invocation":"text","kind":"llm","name":"","result":"aä\n"},{"invocation":"binary","kind":"llm","name":"","result_base64":"/w=="},` +
		`{"invocation":"cut","kind":"llm","name":"","result":"a","result_bytes":70000},{"invocation":"dropped","kind":"llm","name":"","result":"","result_bytes":9},` +
		`{"invocation":"empty","kind":"llm","name":"","result":""},{"invocation":"none","kind":"llm","name":""}]`
	if string(got.Skip) != want {
		t.Errorf("skip is %s; want %s", got.Skip, want)
	}
}

func TestAToolThatWasCalledOnceIsNotRunAgain(t *testing.T) {
	dir := t.TempDir()
	name, ran := filepath.Join(dir, "journal"), filepath.Join(dir, "ran")
	rows := `{"op":"call","phase":"begin","kind":"tool","invocation":"done","name":"pay"}
{"op":"call","phase":"end","kind":"tool","invocation":"done","name":"pay","result":"cmVjZWlwdAo=","result_bytes":8}
{"op":"call","phase":"begin","kind":"tool","invocation":"silent","name":"pay"}
{"op":"call","phase":"end","kind":"tool","invocation":"silent","name":"pay","result_bytes":0}
{"op":"call","phase":"begin","kind":"tool","invocation":"long","name":"pay"}
{"op":"call","phase":"end","kind":"tool","invocation":"long","name":"pay","result":"cmVjZWlwdAo=","result_bytes":80000}
{"op":"call","phase":"begin","kind":"tool","invocation":"open","name":"pay"}
`
	if err := os.WriteFile(name, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		id   string
		code int
		out  string
		runs bool
	}{
		{"done", exitOK, "receipt\n", false}, {"silent", exitOK, "", false}, {"long", exitRefused, "", false}, {"open", exitRefused, "", false}, {"new", exitOK, "paid\n", true},
	} {
		s := &supervisor{hold: make(chan struct{})}
		env := append(s.start(t), "AGBOX_JOURNAL="+name)
		code, out, errs := run(t, env, "tool", "--once", "--id", row.id, "pay", "--", "sh", "-c", "echo paid; touch "+ran)
		err := os.Remove(ran)
		if code != row.code || out != row.out || row.runs != (err == nil) || (code != exitOK) != (errs != "") {
			t.Errorf("the call %s: %d, %q, %q, %v", row.id, code, out, errs, err)
		}
		if row.runs && !slices.Contains(s.asked, "end   0 5 cGFpZAo=") {
			t.Errorf("the supervisor was asked %q", s.asked)
		}
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, row := range map[string]struct {
		env  []string
		code int
	}{
		"the first incarnation":                    {nil, exitOK},
		"a later one without calls before":         {[]string{"AGBOX_PREVIOUS_EXIT_CODE=1", "AGBOX_JOURNAL=" + empty}, exitOK},
		"a later one, and the calls are not known": {[]string{"AGBOX_PREVIOUS_EXIT_CODE=1"}, exitRefused},
	} {
		s := &supervisor{hold: make(chan struct{})}
		env := append(s.start(t), row.env...)
		code, _, errs := run(t, env, "tool", "--once", "--id", "1", "pay", "--", "touch", ran)
		if err := os.Remove(ran); code != row.code || (err == nil) != (code == exitOK) || strings.Contains(errs, "ask the system") != (code != exitOK) {
			t.Errorf("%s: %d, %q, %v", what, code, errs, err)
		}
		if code, _, _ := run(t, env, "tool", "--id", "1", "pay", "--", "touch", ran); code != exitOK || os.Remove(ran) != nil {
			t.Errorf("%s: without --once: %d", what, code)
		}
	}
	if code, _, _ := run(t, []string{"AGBOX_AGENT_SOCKET=x", "AGBOX_TOKEN=x"}, "tool", "--once", "pay", "--", "true"); code != exitFailed {
		t.Errorf("--once without an id: %d", code)
	}
}

// TestALongResultIsTakenFromItsFile as a whole if it is there and not damaged, else its beginning.
func TestALongResultIsTakenFromItsFile(t *testing.T) {
	dir := t.TempDir()
	name, results := filepath.Join(dir, "journal"), filepath.Join(dir, "results")
	long := strings.Repeat("long\n", 20_000)
	rows := fmt.Sprintf(`{"op":"call","phase":"begin","kind":"tool","invocation":"1","name":"a"}
{"op":"call","phase":"end","kind":"tool","invocation":"1","name":"a","result":"bG9u","result_bytes":%d,"result_file":{"at":3,"crc32":%d}}
`, len(long), crc32.ChecksumIEEE([]byte(long)))
	if err := os.WriteFile(name, []byte(rows), 0o600); err != nil {
		t.Fatal(err)
	}
	for content, whole := range map[string]bool{"xyz" + long + "more": true, "xyz" + long[1:] + "?": false, "xyz" + long[:10]: false, "": false} {
		if err := os.WriteFile(results, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, out, _ := run(t, []string{"AGBOX_JOURNAL=" + name, "AGBOX_RESULTS=" + results}, "hydrate")
		var h hydrated
		if err := json.Unmarshal([]byte(out), &h); err != nil || len(h.Skip) != 1 {
			t.Fatalf("%.100s, %v", out, err)
		}
		if got := *h.Skip[0].Result; (got == long) != whole || !whole && (got != "lon" || h.Skip[0].ResultBytes != uint64(len(long))) || whole && h.Skip[0].ResultBytes != 0 {
			t.Errorf("of a file with %d bytes the result has %d of %d bytes", len(content), len(got), h.Skip[0].ResultBytes)
		}
		s := &supervisor{hold: make(chan struct{})}
		code, out, _ := run(t, append(s.start(t), "AGBOX_JOURNAL="+name, "AGBOX_RESULTS="+results), "tool", "--once", "--id", "1", "a", "--", "false")
		if (code == exitOK && out == long) != whole || !whole && code != exitRefused {
			t.Errorf("of a file with %d bytes the tool prints %d bytes: %d", len(content), len(out), code)
		}
	}
}

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
