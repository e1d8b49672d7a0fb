package agentcli

import "testing"

func TestADrainIsTold(t *testing.T) {
	const (
		yes     = `{"ok":true,"result":{}}`
		drained = `{"ok":true,"drain":true,"deadline_ms":1500,"result":{}}`
		late    = `{"ok":true,"drain":true,"deadline_ms":0,"result":{}}`
		refused = `{"ok":false,"drain":true,"deadline_ms":1500,"error":{"code":"NOT_ALLOWED","message":"no"}}`
		fenced  = `{"ok":false,"drain":true,"deadline_ms":0,"error":{"code":"FENCED","message":"no"}}`
	)
	for _, row := range []struct {
		answer string
		args   []string
		code   int
		out    string
	}{
		{yes, []string{"drained"}, 0, ""},
		{drained, []string{"drained"}, 75, "1500\n"},
		{late, []string{"drained"}, 75, "0\n"},
		{refused, []string{"state", "READY"}, 75, ""},
		{refused, []string{"usage", "1", "1"}, 4, ""},
		{drained, []string{"usage", "1", "1"}, 0, ""},
		{drained, []string{"done", "complete"}, 0, ""},
		{drained, []string{"state", "DRAINING"}, 0, ""},
		{drained, []string{"gate", "git_clone"}, 0, ""},
		{late, []string{"gate", "git_clone"}, 75, ""},
		{fenced, []string{"gate", "git_clone"}, 2, ""},
	} {
		env, _ := listen(t, row.answer+"\n")
		if code, out, _ := run(t, env, row.args...); code != row.code || out != row.out {
			t.Errorf("%s %v: exit code %d with %q; want %d with %q", row.answer, row.args, code, out, row.code, row.out)
		}
	}
}
