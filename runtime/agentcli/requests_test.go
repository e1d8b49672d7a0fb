package agentcli

import (
	"strings"
	"testing"
)

func TestAnAgentThatHasToPlanAnewIsToldByTheExitCode(t *testing.T) {
	for _, row := range []struct {
		how, phase string
		code       int
	}{
		{"ok", "EXECUTING", exitOK},
		{"ok", "PLANNING", exitReplan},
		{"replan", "PLANNING", exitOK}, // as it has asked
	} {
		env, requests := listen(t, `{"ok":true,"result":{"phase":"`+row.phase+`"}}`+"\n")
		code, out, errs := run(t, env, "resumed", row.how, "7")
		if want := `{"how":"` + row.how + `","observation":7,"op":"resumed","token":"tok"}` + "\n"; <-requests != want {
			t.Errorf("the request is not %s", want)
		}
		if told := strings.Contains(errs, "ask for its resources again"); code != row.code || out != row.phase+"\n" || told != (code == exitReplan) {
			t.Errorf("resumed %s into %s: exit code %d, %q, %q; want %d", row.how, row.phase, code, out, errs, row.code)
		}
	}
}
