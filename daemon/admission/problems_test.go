package admission

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/agbox/agbox/proto/agbox/caller"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestPublishedClientsAreHeldToThePublishedRules(t *testing.T) {
	c := bare(t)
	for name, tc := range map[string]struct {
		spec *agboxv1.CreateSpec
		yaml string
		says string
	}{
		"any free port":             {&agboxv1.CreateSpec{Ports: []*agboxv1.PortMapping{{ContainerPort: 80}}}, "", "ports[0].host_port: host_port must be between 1 and 65535"},
		"an empty word":             {&agboxv1.CreateSpec{Command: []string{"a", "", "b"}}, "", "command[1]: "},
		"an empty word in a file":   {&agboxv1.CreateSpec{}, "companion_containers: {db: {image: x, command: [a, '']}}", "companion_containers.db.command[1]: "},
		"an empty word in a field":  {&agboxv1.CreateSpec{Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "x", Command: []string{"a", ""}}}}, "", "companion_containers[0].command[1]: "},
		"a hook without health":     {&agboxv1.CreateSpec{Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "x", PostStartOnPrimary: []string{"a"}}}}, "", `"db" with post_start_on_primary must define healthcheck`},
		"a mount under a copy":      {&agboxv1.CreateSpec{Mounts: []*agboxv1.MountSpec{{Source: "/a", Target: "/w"}}, Copies: []*agboxv1.CopySpec{{Source: "/b", Target: "/w/"}}}, "", "copies[0].target: "},
		"a mount beside a copy":     {&agboxv1.CreateSpec{Mounts: []*agboxv1.MountSpec{{Source: "/a", Target: "/w"}}, Copies: []*agboxv1.CopySpec{{Source: "/b", Target: "/w/x"}}}, "", ""},
		"a port and a hook as told": {&agboxv1.CreateSpec{Ports: []*agboxv1.PortMapping{{ContainerPort: 80, HostPort: 80}}, Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "x", PostStartOnPrimary: []string{"a"}, Healthcheck: &agboxv1.HealthcheckConfig{Test: []string{"CMD", "true"}}}}}, "", ""},
	} {
		tc.spec.Image = "image"
		result := c.merge(&agboxv1.CreateSandboxRequest{CreateSpec: tc.spec, ConfigYaml: []byte(tc.yaml)})
		if len(result.Problems) > 0 {
			t.Errorf("%s: a client of ours is refused: %v", name, result.Problems)
		}
		publishedRules(result)
		result.Problems = inPublishedWords(result.Problems)
		_, err := accepted(result)
		if tc.says == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "services[") {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
}

func TestGeneratedIDsAreUUIDsForPublishedClientsOnly(t *testing.T) {
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	published := caller.With(t.Context(), caller.Caller{Published: true})
	for _, ctx := range []context.Context{published, t.Context()} {
		want := ctx == published
		if id := IdentifySandbox(ctx, new(agboxv1.CreateSandboxRequest)); uuid.MatchString(id) != want {
			t.Errorf("the sandbox is %q, want a UUID: %t", id, want)
		}
		req, err := IdentifyExec(ctx, new(agboxv1.CreateExecRequest), "a")
		if err != nil || uuid.MatchString(req.GetExecId()) != want {
			t.Errorf("the exec is %q (%v), want a UUID: %t", req.GetExecId(), err, want)
		}
	}
	if id := IdentifySandbox(published, &agboxv1.CreateSandboxRequest{RequestKey: "k"}); uuid.MatchString(id) {
		t.Errorf("the sandbox of a key is %q", id)
	}
}
