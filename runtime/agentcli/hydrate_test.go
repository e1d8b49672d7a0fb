package agentcli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
		len(h.Skip) != 1 || h.Skip[0] != (call{"1", "tool", "a"}) || len(h.Pending) != 2 || h.Pending[0].Invocation != "2" || h.Pending[1].Invocation != "3" ||
		string(h.Previous) != `{"exit_code":9}` || len(h.Notices) != 0 {
		t.Errorf("%d: %+v", code, h)
	}
	again := file("again", `{"op":"call","phase":"begin","kind":"tool","invocation":"1","name":"a"}
{"op":"call","phase":"end","kind":"tool","invocation":"1","name":"a"}
{"op":"call","phase":"begin","kind":"tool","invocation":"1","name":"b"}
`)
	if _, h, _ := hydrated("AGBOX_JOURNAL=" + again); len(h.Skip) != 0 || len(h.Pending) != 1 || h.Pending[0] != (call{"1", "tool", "b"}) {
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
