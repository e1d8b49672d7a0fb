package agentcli

import (
	"strings"
	"testing"
)

func TestAcquireExitsWithTheVerdict(t *testing.T) {
	const lease = `"leases":[{"resource":"db","mode":"shared","fence":7}]`
	for _, row := range []struct {
		answer string
		code   int
		out    string
		errs   string
	}{
		{`{"ok":true,"result":{"verdict":"GRANTED",` + lease + `}}`, exitOK, "db\tshared\t7\n", ""},
		{`{"ok":true,"result":{"verdict":"WAIT",` + lease + `,"message":"It waits for x."}}`, exitWait, "db\tshared\t7\n", "It waits for x."},
		{`{"ok":true,"result":{"verdict":"DIE","leases":[],"message":"It released its leases."}}`, exitDie, "", "It released its leases."},
		{`{"ok":false,"error":{"code":"LEASE_CONFLICT","message":"No."}}`, exitRefused, "", "No."},
	} {
		env, requests := listen(t, row.answer+"\n")
		code, out, errs := run(t, env, "acquire", "--wait", "a", "--shared", "db", "c", "--exclusive", "d")
		want := `{"manifest":[{"mode":"exclusive","resource":"a"},{"mode":"shared","resource":"db"},{"mode":"shared","resource":"c"},{"mode":"exclusive","resource":"d"}],"op":"acquire","token":"tok","wait":true}` + "\n"
		if got := <-requests; code != row.code || out != row.out || !strings.Contains(errs, row.errs) || (row.errs == "") != (errs == "") || got != want {
			t.Errorf("%s gives %d, %q, %q for %s", row.answer, code, out, errs, got)
		}
	}
	env, requests := listen(t, `{"ok":true,"result":{"leases":[]}}`+"\n")
	if code, _, _ := run(t, env, "release", "db"); code != exitOK || <-requests != `{"op":"release","resources":["db"],"token":"tok"}`+"\n" {
		t.Errorf("release exits with %d", code)
	}
	if code, _, errs := run(t, env, "acquire", "--wait"); code != exitFailed || !strings.Contains(errs, "needs a RESOURCE") {
		t.Errorf("acquire without a resource: %d, %q", code, errs)
	}
}

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
