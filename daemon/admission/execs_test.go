package admission

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

func TestMarksAndPlaceholdersOfSecretVariablesAreChecked(t *testing.T) {
	for _, c := range []struct {
		envs   map[string]string
		marked []string
		says   string
	}{
		{map[string]string{"A": "b", "URL": "u", "TOKEN": "t"}, []string{"URL"}, ""},
		{map[string]string{"A": "(secret)"}, nil, ""},
		{map[string]string{"A": "b"}, []string{"URL"}, `secret_envs names "URL", which env_overrides does not set`},
		{map[string]string{"TOKEN": "(secret)"}, nil, `"TOKEN" has the value "(secret)"`},
		{map[string]string{"A": "(secret)"}, []string{"A"}, "give the value itself"},
	} {
		err := CheckCommand(&agboxv1.CreateExecRequest{Command: []string{"true"}, EnvOverrides: c.envs, SecretEnvs: c.marked})
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%v: %v", c.envs, err)
		case c.says != "" && (fault.ReasonOf(err) != agboxv1.ErrorReason_INVALID_REQUEST || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%v: %v, want %q", c.envs, err, c.says)
		}
	}
}
