package spec

import (
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestADevcontainerWithAComposeFile(t *testing.T) {
	compose := described("../docker-compose.yml", "/project/docker-compose.yml", `
services:
  app: {build: {context: ., dockerfile: .devcontainer/Dockerfile}, command: sleep infinity, volumes: [".:/workspace"], environment: {A: compose, B: "${B}"}, depends_on: [db]}
  db: {image: postgres, depends_on: [disk]}
  disk: {image: disk}
  other: {image: other}
`)
	compose.Variables = map[string]string{"B": "b"}
	req := withFeatures(`{
  "dockerComposeFile": ["../docker-compose.yml", "more.yml"], "service": "app", "runServices": ["db"],
  "workspaceFolder": "/workspace", "containerEnv": {"A": "devcontainer"}, "remoteUser": "dev", "features": {"./f": {}}}`,
		compose, described("more.yml", "/project/.devcontainer/more.yml", "services:\n  app: {environment: {C: more}}\n"),
		described("./f", "/project/.devcontainer/f/devcontainer-feature.json", `{}`))
	wantYAML(t, good(t, req), `
build: {context: /project, dockerfile: .devcontainer/Dockerfile, features: [{source: /project/.devcontainer/f, options: {_REMOTE_USER: dev}}]}
command: [sleep, infinity]
mounts: ["/project:/workspace:rw"]
envs: {A: devcontainer, B: b, C: more}
user: dev
match_user: /workspace
hostname: app
working_dir: /workspace
services: [{name: db, image: postgres, depends_on: [{name: disk, condition: started}]}, {name: disk, image: disk}]
`)
	for text, want := range map[string]string{
		`"dockerComposeFile": "missing.yml", "service": "app"`:          "dockerComposeFile[0]: The compose file missing.yml did not come",
		`"dockerComposeFile": "../docker-compose.yml"`:                  "service: Which service is the container?",
		`"dockerComposeFile": "../docker-compose.yml", "service": "no"`: "service: No compose file has the service \"no\"",
	} {
		r := resolve(t, withFeatures("{"+text+"}", compose))
		if len(r.Problems) == 0 {
			t.Errorf("%s has no problem", text)
			continue
		}
		says(t, text, r.Problems, want)
	}
}

func TestFeaturesAreInstalledInTheImageOfTheComposeFile(t *testing.T) {
	req := withFeatures(`{"dockerComposeFile": "compose.yml", "service": "app", "features": {"./f": {}}}`,
		described("compose.yml", "/project/.devcontainer/compose.yml", "services:\n  app: {image: debian}\n"),
		described("./f", "/project/.devcontainer/f/devcontainer-feature.json", `{}`))
	wantYAML(t, good(t, req), "build: {image: debian, features: [{source: /project/.devcontainer/f}]}\nhostname: app\n")
}

func TestFlagsOfDockerRunInADevcontainer(t *testing.T) {
	r := resolve(t, base("/project/devcontainer.json", `{"image": "x", "workspaceMount": "", "runArgs": [
  "--init", "-it", "--name=x", "--cap-add=SYS_PTRACE", "--cap-add", "NET_RAW", "--security-opt", "seccomp=unconfined", "--privileged",
  "-e", "A=${localWorkspaceFolderBasename}", "--env=B=b", "-v", "data:/data", "--memory=1g", "--cpus", "2", "--network=host", "-p", "8080:80", "--shm-size=64m"]}`, nil))
	if r.Spec == nil {
		t.Fatal(r.Problems)
	}
	wantYAML(t, r.Spec, `
image: x
envs: {A: project, B: b}
security: {cap_add: [SYS_PTRACE, NET_RAW], seccomp_unconfined: true, privileged: true}
volumes: ["data:/data"]
memory_limit: 1g
cpu_limit: 2
ports: ["8080:80"]
shm_size: 64m
`)
	says(t, "notice", r.Notices, "runArgs.network_mode: network_mode: host of service the container is not supported")
	r = resolve(t, base("/project/devcontainer.json", `{"image": "x", "workspaceMount": "", "runArgs": ["--pid=host", "--cgroup-parent=x", "--sysctl", "a=b", "--user"]}`, nil))
	says(t, "problem", r.Problems, "runArgs.pid", "--cgroup-parent", "runArgs.sysctls", "--user\" of runArgs has no value")
}

func TestFilesOfVariablesAndOtherServicesAreRead(t *testing.T) {
	req := base("/project/compose.yaml", `
services:
  web:
    x-agbox: primary
    extends: {file: common.yml, service: base}
    environment: [A=web]
    env_file: [a.env, {path: none.env, required: false}]
  db: {extends: small, image: db, ports: ["2:2"]}
  small: {image: small, command: run small, mem_limit: 64m, ports: ["1:1"], profiles: [x]}
  extra: {image: extra, profiles: [tools]}
  never: {image: never, profiles: [more]}
`, map[string]string{"COMPOSE_PROFILES": "tools,y"})
	common := described("common.yml", "/project/common.yml", "services:\n  base:\n    image: ${IMAGE}\n    environment: {A: common, B: common}\n    env_file: b.env\n    user: agent\n")
	common.Variables = map[string]string{"IMAGE": "node"}
	req.BaseFiles[0].Files = []*agboxv1.NamedFile{
		common, described("a.env", "/project/a.env", "A=a\nC='c d'\n"), described("b.env", "/project/b.env", "D=d\n"),
	}
	r := resolve(t, req)
	if r.Spec == nil {
		t.Fatal(r.Problems)
	}
	wantYAML(t, r.Spec, `
image: node
user: agent
envs: {A: web, B: common, C: c d, D: d}
hostname: web
services:
  - {name: db, image: db, command: [run, small], memory_limit: 64m, ports: ["1:1", "2:2"]}
  - {name: extra, image: extra}
`)
	if at := r.Origin("user"); at.File != "/project/common.yml" || at.Line != 6 {
		t.Errorf("user is from %s:%d", at.File, at.Line)
	}
}

func TestWhatIsExtendedMustBeThere(t *testing.T) {
	req := base("/project/compose.yaml", `
services:
  a: {image: x, x-agbox: primary, extends: none}
  b: {image: x, extends: {service: s, file: missing.yml}}
  c: {image: x, extends: {service: s, file: sub/other.yml}}
  d: {image: x, extends: e}
  e: {image: x, extends: d}
  f: {image: x, env_file: missing.env}
`, nil)
	says(t, "problem", resolve(t, req).Problems, "services.a.extends: There is no service \"none\" to extend", "services.b.extends: The file /project/missing.yml did not come",
		"services.c.extends: sub/other.yml is in another folder", "services.d.extends: More than 16 services", "services.f.env_file[0]: The file /project/missing.env of service f is not there")
}

func TestOnlyTheProjectIsMountedOfAFolderThatHasIt(t *testing.T) {
	req := withFeatures(`{"dockerComposeFile": "compose.yml", "service": "app"}`,
		described("compose.yml", "/project/.devcontainer/compose.yml", "services:\n  app: {image: x, volumes: ['../..:/workspaces:cached', '../data:/data', '../../other:/other']}\n"))
	wantYAML(t, good(t, req), "image: x\nhostname: app\nmounts: ['/project:/workspaces/project:rw', '/project/data:/data:rw', '/other:/other:rw']\n")
	says(t, "notice", resolve(t, req).Notices, "services.app.volumes[0]: Only the project is mounted, at /workspaces/project, and not all of /")
}
