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
