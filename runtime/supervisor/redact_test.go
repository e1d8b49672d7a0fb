package supervisor_test

import (
	"testing"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

func TestLogsHaveNoValuesOfSecretVariables(t *testing.T) {
	b := newBox(t, func(_ *box, boot *guestv1.BootConfig) { boot.SecretEnvs = []string{"API_KEY"} })
	const script = `printf 'one canary-of-'; printf 'container two %s %s canary-o' "$OWN" "$SHORT"`
	for id, want := range map[string]string{
		"shared": "one *** two canary-of-command 1234567 canary-o",
		"own":    "one *** two *** 1234567 canary-o",
		"shown":  "one canary-of-container two canary-of-command 1234567 canary-o",
		"tty":    "one *** two *** 1234567 canary-o",
	} {
		req := sh(id, script)
		req.Env = []string{"OWN=canary-of-command", "SHORT=1234567"}
		if id != "shared" {
			req.SecretEnvs = []string{"OWN", "SHORT"}
		}
		req.ShowSecrets, req.Tty = id == "shown", id == "tty"
		record := b.run(req)
		if got := b.stdout(id); got != want || record.GetStdoutBytes() != uint64(len(want)) {
			t.Errorf("%s: %d bytes are recorded, and the log has %q; want %q", id, record.GetStdoutBytes(), got, want)
		}
	}
}
