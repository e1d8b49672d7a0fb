package spec

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The daemon logs the problems of a request.
func TestProblemsDoNotQuoteValuesOfVariables(t *testing.T) {
	const canary = "canary0f"
	deep := strings.Repeat("${A:-", 12) + "-" + canary + strings.Repeat("}", 12)
	requests := map[string]*agboxv1.CreateSandboxRequest{
		"a NUL byte": {CreateSpec: &agboxv1.CreateSpec{Image: "x", Envs: map[string]string{"TOKEN": canary + "\x00"}}},
	}
	for _, value := range []string{"pa${-" + canary, "pa$-" + canary, "pa${-" + canary + "}", "pa${A+-" + canary + "-${-" + canary + "}}", "pa${A!-" + canary + "}", deep} {
		requests[value] = &agboxv1.CreateSandboxRequest{BaseFiles: []*agboxv1.ConfigFile{{
			Path: "/x/compose.yaml", Format: agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE, Primary: "a", Variables: map[string]string{"A": ""},
			Content: []byte("services: {a: {image: x, environment: {TOKEN: '" + value + "'}}}"),
		}}}
	}
	for what, req := range requests {
		result := resolve(t, req)
		if len(result.Problems) == 0 {
			t.Errorf("%s: no problem", what)
		}
		for _, p := range result.Problems {
			if strings.Contains(p.GetMessage(), canary) {
				t.Errorf("%s: %s", what, p.GetMessage())
			}
		}
	}
}
