package spec

import (
	"strings"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/badspecs"
	"github.com/agbox/agbox/spec/document"
)

func resolve(t testing.TB, req *agboxv1.CreateSandboxRequest) *Result {
	t.Helper()
	rules := protovalidate.GlobalValidator
	if req.GetConfigDir() == "" {
		req.ConfigDir = "/project"
	}
	if req.GetHomeDir() == "" {
		req.HomeDir = "/home/me"
	}
	return Resolve(Input{Request: req, Rules: rules, Host: testHost, CheckAgent: checkAgent})
}

func file(text string) *agboxv1.CreateSandboxRequest {
	return &agboxv1.CreateSandboxRequest{ConfigYaml: []byte(text)}
}

// good resolves a request that must have no problems.
func good(t *testing.T, req *agboxv1.CreateSandboxRequest) *agboxv1.CreateSpec {
	t.Helper()
	r := resolve(t, req)
	if r.Spec == nil || len(r.Problems) > 0 {
		t.Fatalf("problems: %v", r.Problems)
	}
	return r.Spec
}

// wantYAML compares a spec with a file, which makes differences easy to read.
func wantYAML(t *testing.T, got *agboxv1.CreateSpec, want string) {
	t.Helper()
	text, err := document.WriteYAML(got.ProtoReflect())
	if err != nil {
		t.Fatal(err)
	}
	wanted := new(agboxv1.CreateSpec)
	report := new(document.Report)
	r := document.Reader{File: "want", Report: report}
	r.Message(document.YAML("want", []byte(want), report), wanted.ProtoReflect(), "")
	if len(report.Problems) > 0 {
		t.Fatalf("the test itself is wrong: %v", report.Problems)
	}
	requiredInFile(wanted)
	if !proto.Equal(got, wanted) {
		t.Errorf("got:\n%s", text)
	}
}

func TestEveryBadSpecSaysWhereAndWhatToDo(t *testing.T) {
	cases, err := badspecs.All()
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) < 100 {
		t.Errorf("there are %d cases, and once there were more", len(cases))
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			r := resolve(t, file(c.YAML))
			if r.Spec != nil {
				t.Error("it is accepted")
			}
			for i, p := range r.Problems {
				if !strings.HasSuffix(p.GetMessage(), ".") || p.GetFile() != "agbox.yaml" || p.GetLine() == 0 {
					t.Errorf("no sentence, or no place: %v", p)
				}
				if i >= len(c.Want) {
					t.Errorf("and: %v", p)
					continue
				}
				if want := c.Want[i]; p.GetLine() != want.Line || p.GetField() != want.Field || !strings.Contains(p.GetMessage(), want.Says) {
					t.Errorf("got %v, want %+v", p, want)
				}
			}
			if len(r.Problems) < len(c.Want) {
				t.Errorf("missing: %+v", c.Want[len(r.Problems):])
			}
		})
	}
}

func TestFilesAndFieldsAreMerged(t *testing.T) {
	req := file(`
image: middle
envs: {A: file, B: file, C: file}
command: [a]
entrypoint: [start]
mounts: ["./src:/src"]
workspace: {source: ., mount: false}
security: {cap_add: [SYS_PTRACE]}
base: common.yaml
`)
	req.ConfigDir = "/project/box"
	req.BaseFiles = []*agboxv1.ConfigFile{{Path: "/project/box/common.yaml", Content: []byte(`
image: first
name: base
envs: {C: base, D: base}
command: [base]
entrypoint: [run, -x]
mounts: ["~/x:/x", "../y:/y"]
workspace: {source: other, mount: true, target: /w}
security: {cap_add: [NET_ADMIN], allow_new_privileges: true}
idle_ttl: 5m
`)}}
	req.CreateSpec = &agboxv1.CreateSpec{
		Envs: map[string]string{"B": "flag"}, Command: []string{"b"}, Name: "flag",
		Mounts: []*agboxv1.MountSpec{{Source: "z", Target: "/z", Writable: true}},
	}
	wantYAML(t, good(t, req), `
image: middle
name: flag
envs: {A: file, B: flag, C: file, D: base}
command: [base, a, b]
entrypoint: [start]
mounts: ["/home/me/x:/x", "/project/y:/y", "/project/box/src:/src", "/project/box/z:/z:rw"]
workspace: {source: /project/box, target: /w}
security: {cap_add: [NET_ADMIN, SYS_PTRACE], allow_new_privileges: true}
idle_ttl: 5m
`)
}

func TestCompanionsAreServicesUnderTheirNames(t *testing.T) {
	req := file(`
image: x
services:
  - {name: db, image: postgres:16, depends_on: [base_1]}
  - {name: later, image: y, required: false}
companion_containers:
  redis: {image: "redis:7", envs: {A: b}}
  base_1:
    image: z
  needed: {image: z, required: true}
`)
	req.CreateSpec = &agboxv1.CreateSpec{Services: []*agboxv1.ServiceSpec{{Name: "asked", Image: "w"}}}
	wantYAML(t, good(t, req), `
image: x
services:
  - {name: db, image: postgres:16, required: true, depends_on: [{name: base_1}]}
  - {name: later, image: y, required: false}
  - {name: base_1, image: z, required: true}
  - {name: needed, image: z, required: true}
  - {name: redis, image: "redis:7", envs: {A: b}, required: false}
  - {name: asked, image: w, required: false}
`)
}

func TestWhatIsRemovedWhenIdleHasItsTime(t *testing.T) {
	wantYAML(t, good(t, file("{image: x, idle_action: remove}")), "{image: x, idle_action: remove, idle_ttl: 1m}")
	wantYAML(t, good(t, file("{image: x, idle_action: remove, idle_ttl: 2h}")), "{image: x, idle_action: remove, idle_ttl: 2h}")
	wantYAML(t, good(t, file("{image: x, idle_action: remove, idle_ttl: 0}")), "{image: x, idle_action: remove, idle_ttl: 0s}")
	wantYAML(t, good(t, file("{image: x, idle_ttl: 5ms}")), "{image: x, idle_ttl: 5ms}")
	wantYAML(t, good(t, file("{image: x, idle_action: stop}")), "{image: x, idle_action: stop}")
}

func TestProblemsOfAllFilesAreToldInTheirOrder(t *testing.T) {
	req := file("image: x\nports: [\"80:80\"]\nservices:\n  - {name: db, image: y}\n")
	req.BaseFiles = []*agboxv1.ConfigFile{{Path: "/project/base.yaml", Content: []byte("services:\n  - {name: db, image: z}\nmemory_limit: 1x\n")}}
	req.CreateSpec = &agboxv1.CreateSpec{Ports: []*agboxv1.PortMapping{{ContainerPort: 1, HostPort: 80}}, Name: "B"}
	r := resolve(t, req)
	var got []string
	for _, p := range r.Problems {
		got = append(got, strings.TrimSpace(p.GetFile()+" "+p.GetField()))
	}
	if s := strings.Join(got, "|"); s != "/project/base.yaml memory_limit|agbox.yaml services[0].name|ports[0].host_port|name" && s != "/project/base.yaml memory_limit|agbox.yaml services[0].name|name|ports[0].host_port" {
		t.Errorf("got %s: %v", s, r.Problems)
	}
	if !strings.Contains(r.Problems[1].GetMessage(), "/project/base.yaml:2") {
		t.Errorf("the other place is not named: %v", r.Problems[1])
	}
}

func TestABaseThatDidNotComeIsMissed(t *testing.T) {
	r := resolve(t, file("image: x\nbase:\n  - compose.yaml\n  - {file: x, frmat: y}\n  - {file: z, format: odd}\n"))
	var got []string
	for _, p := range r.Problems {
		got = append(got, p.GetField()+": "+p.GetMessage())
	}
	all := strings.Join(got, "\n")
	for _, want := range []string{"base[0]: The base file /project/compose.yaml did not come", "base[1].frmat", "base[2].format"} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing of %q in\n%s", want, all)
		}
	}
	bases := document.Bases([]byte("base: [a.yaml, {file: b.yml, format: compose, primary: web}]"))
	if len(bases) != 2 || bases[0].File != "a.yaml" || bases[1].Primary != "web" || bases[1].Format != agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE {
		t.Errorf("read as %+v", bases)
	}
	if document.Bases([]byte("base: [")) != nil {
		t.Error("a broken file has bases")
	}
}

func TestRelativePathsNeedAFolder(t *testing.T) {
	rules := protovalidate.GlobalValidator
	r := Resolve(Input{Rules: rules, Request: &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{
		Image: "x", Mounts: []*agboxv1.MountSpec{{Source: "a", Target: "/a"}, {Source: "~/b", Target: "/b"}},
	}}})
	if len(r.Problems) != 2 || !strings.Contains(r.Problems[0].GetMessage(), "config_dir") || !strings.Contains(r.Problems[1].GetMessage(), "home_dir") {
		t.Errorf("got %v", r.Problems)
	}
}

// testHost is the host of all tests here.
var testHost = Host{
	Own: []string{"/srv/agbox/data"}, Binaries: []string{"/opt/agbox/bin/agboxd"}, Home: "/home/me", Homes: []string{"/home/me", "/var/lib/me"},
	Granted: []string{"/var/lib/jobs", "/home/you/shared"},
}

func TestDangerousSourcesCanBeForced(t *testing.T) {
	for source, dangerous := range map[string]bool{
		"/": true, "/proc": true, "/sys/fs": true, "/dev/kvm": true, "/run": true, "/var": true, "/var/run": true, "/etc": true,
		"/home": true, "/home/me": true, "/home/you": true, "/root": true, "/home/me/.ssh/id": true, "/home/me/.config": true, "/x/.aws": true,
		"/srv/agbox/data": true, "/srv/agbox/data/x": true, "/srv/agbox": true, "/srv": true, "/home/me/.config/gh/hosts.yml": true,
		"/run/user/1000": true, "/run/user": true, "/run/dbus/system_bus_socket": true, "/run/systemd": true, "/run/user/1000/docker.sock": true, "/run/user/1000/keyring/ssh": false, "/home/me/src": false, "/srv/agbox2": false, "/tmp": false, "/home/me/.sshx": false, "/devices": false, "/opt": false,
		// The system and others.
		"/etc/hosts": true, "/etc/shadow": true, "/usr/share": true, "/usr": true, "/var/lib/x": true, "/lib/modules": true, "/bin/sh": true, "/etcetera": false, "/var/tmp/x": false,
		"/home/you/src": true, "/root/src": true, "/var/home/you/src": true, "/Users/you/src": true,
		"/var/lib/me/src": false, "/var/lib/me": true, "/var/lib/jobs": false, "/var/lib/jobs/1": false, "/home/you/shared/x": false, "/home/you/shared/.ssh": true,
		"/opt/agbox/bin/agboxd": true, "/opt/agbox/bin": false,
	} {
		if why := DangerousSource(source, testHost, false); (why != "") != dangerous {
			t.Errorf("%s: %q", source, why)
		}
	}
	if why := DangerousSource("/opt/agbox", testHost, true); !strings.Contains(why, "/opt/agbox/bin/agboxd") {
		t.Errorf("a writable folder with agbox's programs: %q", why)
	}
	for _, what := range []string{"mounts: [\"/:/host\"]", "copies: [\"~/.ssh:/x\", \"/etc/shadow:/y\"]", "workspace: {source: /usr/src}"} {
		good(t, file("image: x\n"+what+"\nsecurity: {allow_dangerous_mounts: true}\n"))
	}
}

func TestWaitingForTheImagesHealthcheckIsNoted(t *testing.T) {
	r := resolve(t, file("image: x\nservices:\n  - {name: a, image: y}\n  - {name: b, image: z, depends_on: [{name: a, condition: healthy}]}\n"))
	if len(r.Problems) != 0 || len(r.Notices) != 1 || r.Notices[0].GetLine() != 4 || !strings.Contains(r.Notices[0].GetMessage(), "healthcheck of its image") {
		t.Errorf("got %v, %v", r.Problems, r.Notices)
	}
}

func TestNobodySetsWhatTheDaemonFillsIn(t *testing.T) {
	req := file("image: x\ntool_projections: [{tool: git, source: /}]\n")
	req.CreateSpec = &agboxv1.CreateSpec{ToolProjections: []*agboxv1.ToolProjection{{Tool: "git", Source: "/"}}}
	r := resolve(t, req)
	if r.Spec != nil || len(r.Problems) != 2 || r.Problems[0].GetLine() != 2 || !strings.Contains(r.Problems[1].GetMessage(), "The daemon fills") {
		t.Errorf("got %v", r.Problems)
	}
}

func TestACallerAddsWhatOnlyItCanFind(t *testing.T) {
	r := resolve(t, file("image: x\nmounts:\n  - /opt/x:/x\n"))
	r.Problem([]any{"mounts", 0, "source"}, "The folder %s is not there: make it", "/opt/x")
	if r.Spec != nil || len(r.Problems) != 1 || document.Line(r.Problems[0]) != "agbox.yaml:3:5: mounts[0].source: The folder /opt/x is not there: make it." {
		t.Errorf("got %v", r.Problems)
	}
}

func TestAThousandMistakesAreCutShort(t *testing.T) {
	r := resolve(t, file("image: x\nports: ["+strings.Repeat("x,", 1000)+"]\n"))
	if len(r.Problems) != document.MaxProblems {
		t.Errorf("there are %d", len(r.Problems))
	}
}

func FuzzResolve(f *testing.F) {
	cases, err := badspecs.All()
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range cases {
		f.Add([]byte(c.YAML), uint8(0))
	}
	f.Add([]byte("services:\n  web: {image: x, x-agbox: primary, ports: [80], volumes: [a:/b, ./c:/d], environment: {A: '${B:-c}'}}\n  db: {image: y, healthcheck: {test: z}, depends_on: {web: {condition: service_healthy}}}\n"), uint8(1))
	f.Add([]byte(`{"image": "x", "mounts": ["source=${localWorkspaceFolder}/a,target=/a,type=bind"], "forwardPorts": [80, "db:5432"], "postCreateCommand": {"a": ["b", "c d"]}}`), uint8(2))
	f.Add([]byte("build: A"), uint8(0))
	rules := protovalidate.GlobalValidator
	f.Fuzz(func(t *testing.T, text []byte, kind uint8) {
		req := &agboxv1.CreateSandboxRequest{ConfigDir: "/p", HomeDir: "/h"}
		switch kind % 3 {
		case 0:
			req.ConfigYaml = text
		case 1:
			req.BaseFiles = []*agboxv1.ConfigFile{{Path: "/p/compose.yaml", Content: text}}
		case 2:
			req.BaseFiles = []*agboxv1.ConfigFile{{Path: "/p/devcontainer.json", Content: text}}
		}
		r := Resolve(Input{Request: req, Rules: rules, CheckAgent: checkAgent})
		if (r.Spec == nil) != (len(r.Problems) > 0) || r.Spec != nil && r.Spec.GetImage() == "" && r.Spec.GetBuild() == nil {
			t.Errorf("spec %v, problems %v", r.Spec, r.Problems)
		}
		for _, p := range append(r.Problems, r.Notices...) {
			if !strings.HasSuffix(p.GetMessage(), ".") {
				t.Errorf("no sentence: %v", p)
			}
		}
	})
}

func TestAPortOnAllAddressesOverlapsOneOnAnAddress(t *testing.T) {
	got := resolve(t, &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("image: x\nports: [\"0.0.0.0:80:80\", \"127.0.0.1:80:81\", \"[::1]:80:82\"]\n")})
	if len(got.Problems) != 1 || got.Problems[0].GetField() != "ports[1].host_port" {
		t.Errorf("problems: %v", got.Problems)
	}
}
