package spec

import (
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

func base(path, text string, variables map[string]string) *agboxv1.CreateSandboxRequest {
	return &agboxv1.CreateSandboxRequest{BaseFiles: []*agboxv1.ConfigFile{{Path: path, Content: []byte(text), Variables: variables}}}
}

// says checks that each text is in one of the messages and that there are no other
// messages.
func says(t *testing.T, what string, got []*agboxv1.SpecProblem, want ...string) {
	t.Helper()
	for i, p := range got {
		if p.GetLine() == 0 || !strings.HasSuffix(p.GetMessage(), ".") {
			t.Errorf("%s: no place or no sentence: %v", what, p)
		}
		if i >= len(want) || !strings.Contains(p.GetField()+": "+p.GetMessage(), want[i]) {
			t.Errorf("%s %d: %v", what, i, p)
		}
	}
	if len(got) < len(want) {
		t.Errorf("%s: nothing of %q", what, want[len(got):])
	}
}

const composeYAML = `
name: shop
version: "3.9"
x-env: &env
  TZ: UTC
services:
  web:
    x-agbox: primary
    image: "node:${NODE:-20}"
    command: npm run "dev server"
    environment:
      <<: *env
      PORT: 3000
      PASSWORD:
    ports:
      - "3000:3000"
      - target: 9229
        published: 9229
        host_ip: 0.0.0.0
    volumes:
      - .:/app
      - modules:/app/node_modules
      - /cache
    working_dir: /app
    user: "1000"
    restart: unless-stopped
    tty: true
    depends_on:
      db: {condition: service_healthy}
  db:
    image: postgres:16
    restart: always
    environment: ["POSTGRES_PASSWORD=a$$b", PGDATA]
    volumes:
      - data:/var/lib/postgresql/data
      - ./init.sql:/docker-entrypoint-initdb.d/init.sql:ro
    healthcheck:
      test: pg_isready -U postgres
      interval: 5s
      retries: 3
    expose: [5432]
    mem_limit: 512m
    deploy:
      resources:
        limits: {cpus: "0.5", pids: 100}
    shm_size: 128m
    ulimits: {nofile: 1024, nproc: {soft: 10, hard: 20}}
    tmpfs: /run
    cap_add: [CAP_SYS_NICE]
    networks: [back]
  cache:
    image: redis:7
    command: ["redis-server", "--save", ""]
    depends_on: [db, web]
    read_only: true
    security_opt: ["no-new-privileges:true", "label=x"]
  docs: {image: x, profiles: [docs]}
volumes:
  data:
  modules:
networks:
  back:
`

func TestAComposeFileAsPeopleWriteIt(t *testing.T) {
	r := resolve(t, base("/project/compose.yaml", composeYAML, map[string]string{"PASSWORD": "secret"}))
	if r.Spec == nil {
		t.Fatal(r.Problems)
	}
	wantYAML(t, r.Spec, `
image: node:20
command: [npm, run, dev server]
envs: {TZ: UTC, PORT: 3000, PASSWORD: secret}
ports: ["3000:3000", "0.0.0.0:9229:9229"]
mounts: ["/project:/app:rw"]
volumes: ["modules:/app/node_modules", "web-1:/cache"]
working_dir: /app
user: 1000
hostname: web
revival: revive
services:
  - name: db
    image: postgres:16
    envs: {POSTGRES_PASSWORD: a$b}
    volumes: ["data:/var/lib/postgresql/data"]
    healthcheck: {test: [CMD-SHELL, pg_isready -U postgres], interval: 5s, retries: 3}
    memory_limit: 512m
    cpu_limit: "0.5"
    pids_limit: 100
    shm_size: 128m
    ulimits: ["nofile=1024:1024", "nproc=10:20"]
    tmpfs: [/run]
    security: {cap_add: [SYS_NICE]}
    copies: ["/project/init.sql:/docker-entrypoint-initdb.d/init.sql"]
  - name: cache
    image: redis:7
    command: [redis-server, --save, ""]
    depends_on: [{name: db, condition: started}]
    security: {read_only_root: true}
`)
	says(t, "notice", r.Notices,
		"services.web.ports[0]: Ports without an address",
		"services.web.tty: tty of service web is not supported",
		"services.db.environment[1]: The variable PGDATA has no value",
		"services.db.volumes[1]: Service db gets a copy of ./init.sql, made before its first start, instead of a mount: later changes do not reach it.",
		"services.cache.depends_on[1]: The dependency on web",
		"services.cache.security_opt[1]: The security_opt label=x",
		"services.docs: Service docs was left out, because it belongs to a profile (docs)",
		"volumes: Volumes last as long as the sandbox",
		"networks: Networks are not supported",
	)
}

func TestTheEntrypointOfTheComposePrimaryReplacesThatOfItsImage(t *testing.T) {
	for text, want := range map[string]string{
		"{image: x, command: [b], entrypoint: [a, '1']}": "{image: x, hostname: web, entrypoint: [a, '1'], command: [b]}",
		"{image: x, command: [b], entrypoint: []}":       "{image: x, hostname: web, entrypoint: [''], command: [b]}",
		"{image: x, command: [b]}":                       "{image: x, hostname: web, command: [b]}",
	} {
		req := base("/project/compose.yaml", "services:\n  web: "+text+"\n", nil)
		req.BaseFiles[0].Primary = "web"
		wantYAML(t, good(t, req), want)
	}
}

func TestOnlyTheServicesOfAComposeFile(t *testing.T) {
	text := "services:\n  db: {image: postgres}\n  web: {image: node, depends_on: [db]}\n"
	r := resolve(t, base("/project/compose.yaml", text, nil))
	says(t, "problem", r.Problems, "x-agbox: primary")

	req := base("/project/compose.yaml", text, nil)
	req.CreateSpec = &agboxv1.CreateSpec{Image: "mine"}
	wantYAML(t, good(t, req), "image: mine\nservices: [{name: db, image: postgres}, {name: web, image: node, depends_on: [{name: db, condition: started}]}]\n")

	req = base("/project/compose.yaml", text, nil)
	req.ConfigYaml = []byte("base: [{file: compose.yaml, primary: web}]\ncpu_limit: 2\n")
	wantYAML(t, good(t, req), "image: node\nhostname: web\ncpu_limit: 2\nservices: [{name: db, image: postgres}]\n")

	req = base("/project/stack.yml", text, nil)
	req.BaseFiles[0].Format = agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE
	req.BaseFiles[0].Primary = "nobody"
	says(t, "problem", resolve(t, req).Problems, `There is no service "nobody" to be the primary: there are db, web`)
}

func TestWhatMustNotBeLeftOutOfAComposeFileIsAProblem(t *testing.T) {
	r := resolve(t, base("/project/docker-compose.yml", `
include: [other.yaml]
services:
  a: {build: ., x-agbox: primary}
  b: {image: x, extends: {service: a}}
  c: {image: x, network_mode: none}
  n: {image: x, networks: [n]}
  d: {image: x, entrypoint: [sh]}
  e: {image: x, depends_on: {d: {condition: service_ended}, a: {condition: service_completed_successfully}}}
  f: {image: "x:${TAG:?give a tag}"}
  g: {image: x, ports: ["x:y"], volumes: ["a:b"], privileged: maybe}
  h: [x]
  i: {image: x, command: "a 'b", x-agbox: primary}
volumes: {v: {external: true}}
networks: {n: {internal: true}, default: {}}
`, nil))
	says(t, "problem", r.Problems,
		"include[0]: The file /project/other.yaml did not come", "services.c.network_mode: Service c is to have no network",
		"services.e.depends_on.d: The condition", "services.e.depends_on.a: Service a is the primary, which does not end", "services.f.image: The variable TAG is not set (give a tag)",
		"services.g.ports[0]", "services.g.volumes[0]", "services.g.privileged", "services.h: Service h should be a map",
		"services.i.command", "services.i.x-agbox: Service a is the primary already", "volumes.v: The volume v is external", "networks.n: The network n is internal",
	)
}

func TestAFileWithOnlyInternalNetworksGetsAnInternalNetwork(t *testing.T) {
	for networks, want := range map[string]string{
		"networks: {n: {internal: true}, unused: {}}":   "network: internal\n",
		"networks: {n: {internal: true, driver: x}}":    "network: internal\n",
		"networks: {n: {}, unused: {internal: true}}":   "",
		"networks: {n: {internal: false}, default: {}}": "",
	} {
		text := "services: {a: {image: a, x-agbox: primary, networks: [n]}, b: {image: b, networks: {n: {aliases: [x]}}}, c: {image: c, profiles: [p]}}\n" + networks
		wantYAML(t, good(t, base("/project/compose.yaml", text, nil)), "image: a\nhostname: a\n"+want+"services: [{name: b, image: b}]\n")
	}
	wantYAML(t, good(t, base("/project/compose.yaml", "services: {a: {image: a, x-agbox: primary}}\nnetworks: {default: {internal: true}}", nil)), "image: a\nhostname: a\nnetwork: internal\n")
	req := base("/project/compose.yaml", "services: {a: {image: a, x-agbox: primary, ports: [\"80:80\"]}}\nnetworks: {default: {internal: true}}", nil)
	says(t, "problem", resolve(t, req).Problems, "ports[0]: No port leads into an internal network")
	req.CreateSpec = &agboxv1.CreateSpec{Network: agboxv1.NetworkMode_NETWORK_MODE_OPEN}
	good(t, req)
}

func TestAServiceForWhoseEndOthersWaitIsOneShot(t *testing.T) {
	wantYAML(t, good(t, base("/project/compose.yaml", `
services:
  migrate: {image: m, restart: "no"}
  web: {image: w, x-agbox: primary, depends_on: {migrate: {condition: service_completed_successfully}}}
  app: {image: a, depends_on: {seed: {condition: service_completed_successfully}}}
  seed: {image: s}
  other: {image: o, profiles: [p], depends_on: {app: {condition: service_completed_successfully}}}
`, nil)), `
image: w
hostname: web
services:
  - {name: migrate, image: m, one_shot: true}
  - {name: app, image: a, depends_on: [{name: seed, condition: started}]}
  - {name: seed, image: s, one_shot: true}
`)
}

func TestAnImageThatABaseFileWouldBuildCanBeNamedOverIt(t *testing.T) {
	for path, text := range map[string]string{
		"/project/compose.yaml":      "services: {web: {build: ., x-agbox: primary}}",
		"/project/devcontainer.json": `{"build": {"dockerfile": "Dockerfile"}, "workspaceMount": ""}`,
	} {
		req := base(path, text, nil)
		if s := good(t, req); s.GetBuild().GetContext() != "/project" || s.GetImage() != "" {
			t.Errorf("%s became %v", path, s)
		}
		req.CreateSpec = &agboxv1.CreateSpec{Image: "my/web"}
		if s := good(t, req); s.GetImage() != "my/web" || s.GetBuild() != nil {
			t.Errorf("%s with an image became %v", path, s)
		}
		req.CreateSpec = &agboxv1.CreateSpec{Build: &agboxv1.BuildSpec{Args: map[string]string{"A": "1"}}}
		if s := good(t, req); s.GetBuild().GetContext() != "/project" || s.GetBuild().GetArgs()["A"] != "1" {
			t.Errorf("%s with an argument became %v", path, s)
		}
	}
	req := base("/project/compose.yaml", "services: {web: {image: a, x-agbox: primary}}", nil)
	req.CreateSpec = &agboxv1.CreateSpec{Build: &agboxv1.BuildSpec{Context: "/project/x"}}
	wantYAML(t, good(t, req), "build: /project/x\nhostname: web\n")
}

func TestABuildOfAComposeFile(t *testing.T) {
	r := resolve(t, base("/project/compose.yaml", `
services:
  web:
    x-agbox: primary
    image: registry.example/web
    build: {context: ./web, dockerfile: docker/Dockerfile.dev, target: dev, args: [A=1, FROM_ENV, UNSET], cache_from: [x]}
  db: {build: ./db}
  inline: {build: {dockerfile_inline: "FROM x"}}
`, map[string]string{"FROM_ENV": "yes"}))
	if r.Spec == nil {
		t.Fatal(r.Problems)
	}
	wantYAML(t, r.Spec, `
build: {context: /project/web, dockerfile: docker/Dockerfile.dev, target: dev, args: {A: "1", FROM_ENV: "yes"}}
hostname: web
services: [{name: db, build: /project/db}, {name: inline, build: {dockerfile_inline: FROM x}}]
`)
	says(t, "notice", r.Notices, "services.web.build.cache_from: build.cache_from of service web is not supported")
}

func TestSecretsConfigsAndMountsOfServicesAreCopied(t *testing.T) {
	r := resolve(t, base("/project/compose.yaml", `
services:
  app: {image: x, x-agbox: primary, secrets: [key]}
  web:
    image: y
    entrypoint: [run, -x]
    secrets: [{source: key, target: other, uid: "1000"}]
    configs: [conf, {source: conf, target: /etc/conf}]
    volumes: ["./html:/html:ro", "/etc/localtime:/etc/localtime:ro"]
secrets: {key: {file: ./key.txt}}
configs: {conf: {file: /project/conf}}
`, nil))
	if r.Spec == nil {
		t.Fatal(r.Problems)
	}
	wantYAML(t, r.Spec, `
image: x
hostname: app
copies: ["/project/key.txt:/run/secrets/key"]
services:
  - name: web
    image: y
    entrypoint: [run, -x]
    copies:
      - {source: /project/key.txt, target: /run/secrets/other, owner: "1000"}
      - /project/conf:/conf
      - /project/conf:/etc/conf
      - /project/html:/html
`)
	says(t, "notice", r.Notices, "services.web.volumes[0]: Service web gets a copy of ./html, made before its first start", "services.web.volumes[1]: The mount of /etc/localtime")
	r = resolve(t, base("/project/compose.yaml", `
services:
  app: {image: x, x-agbox: primary, secrets: [none, env]}
  web: {image: y, read_only: true, volumes: ["./a:/a", "/var/run/docker.sock:/s"], pid: host, sysctls: {a: 1}}
secrets: {env: {environment: X}}
`, nil))
	says(t, "problem", r.Problems, "services.app.secrets[0]: There is no \"none\" under secrets", "services.app.secrets[1]: env has no file under secrets",
		"services.web.volumes[0]: Nothing can be copied into a service whose root is read-only", "services.web.volumes[1].source: Copying /var/run/docker.sock is refused", "services.web.pid: pid of service web is not supported",
		"services.web.sysctls: sysctls of service web is not supported")
}

func TestABuildThatCannotBeMadeIsAProblem(t *testing.T) {
	r := resolve(t, base("/project/compose.yaml", `
services:
  a: {build: {context: ., ssh: [default]}, x-agbox: primary}
  b: {build: "https://example.com/x.git"}
  c: {build: {context: ./c, dockerfile: ../Dockerfile}}
  d: {build: /etc}
  e: {build: {context: ., dockerfile: x, dockerfile_inline: FROM x}}
  f: {}
`, nil))
	says(t, "problem", r.Problems, "services.a.build.ssh: ssh of the build of service a is not supported", "services.b.build: The build context of service b is an address",
		"services.c.build.dockerfile: The Dockerfile ../Dockerfile is outside", "services.d.build: Copying /etc is refused",
		"services.e.build.dockerfile_inline: The Dockerfile is either", "services.f.image: Service f has no image")
}

func TestABuildOfADevcontainer(t *testing.T) {
	for text, want := range map[string]string{
		`{"build": {"dockerfile": "Dockerfile", "context": "..", "args": {"V": "${localEnv:V:3}"}, "target": "dev"}, "workspaceMount": ""}`: "build: {context: /project, dockerfile: .devcontainer/Dockerfile, args: {V: \"3\"}, target: dev}\n",
		`{"build": {"dockerfile": "Dockerfile"}, "workspaceMount": ""}`:                                                                     "build: {context: /project/.devcontainer, dockerfile: Dockerfile}\n",
		`{"dockerFile": "../Dockerfile", "context": "..", "workspaceMount": ""}`:                                                            "build: {context: /project, dockerfile: Dockerfile}\n",
	} {
		wantYAML(t, good(t, base("/project/.devcontainer/devcontainer.json", text, nil)), want)
	}
	r := resolve(t, base("/project/devcontainer.json", `{"build": {"dockerfile": "../x", "options": ["--network=host"]}}`, nil))
	says(t, "problem", r.Problems, "build: The Dockerfile ../x is outside", "build.options: Options of the build are not supported")
}

func TestProblemsOfAComposeFileAreInItsOwnWords(t *testing.T) {
	r := resolve(t, base("/project/compose.yaml", "services:\n  My_DB:\n    image: postgres\n    mem_limit: 1x\n    volumes: [\"Data:/data\"]\n  web:\n    x-agbox: primary\n    image: x\n    volumes:\n      - /:/host\n", nil))
	says(t, "problem", r.Problems, "services.My_DB: \"My_DB\" is not allowed", "services.My_DB.mem_limit: \"1x\" is not a size",
		"services.My_DB.volumes[0].name: \"Data\" is not allowed", "services.web.volumes[0].source: Mounting / is refused")
	if r.Problems[3].GetLine() != 10 || r.Problems[3].GetFile() != "/project/compose.yaml" {
		t.Errorf("got %v", r.Problems[3])
	}
}

const devcontainerText = `// For format details, see https://aka.ms/devcontainer.json.
{
	"name": "Node & Postgres",
	"image": "mcr.microsoft.com/devcontainers/javascript-node:1-20",
	/* no features */
	"containerEnv": {
		"PROJECT": "${localWorkspaceFolderBasename}",
		"ME": "${localEnv:USER:nobody}",
		"GONE": "${localEnv:NOPE}",
	},
	"remoteEnv": { "BIN": "${containerEnv:PROJECT}/bin", "PATH": "${containerEnv:PATH}:/x", "UNSET": null },
	"mounts": [
		"source=${localWorkspaceFolder}/.cache,target=/cache,type=bind,consistency=cached",
		{ "type": "volume", "source": "history", "target": "/history" },
		"type=tmpfs,target=/scratch,tmpfs-size=64m",
	],
	"forwardPorts": [3000, "db:5432", "8081:81"],
	"portsAttributes": { "3000": { "label": "web" } },
	"onCreateCommand": "echo one",
	"postCreateCommand": { "install": "npm ci", "build": ["npm", "run", "build it"] },
	"postStartCommand": "npm start",
	"customizations": { "vscode": { "extensions": ["x"] } },
	"capAdd": ["SYS_PTRACE"],
	"securityOpt": ["seccomp=unconfined"],
	"init": true,
	"remoteUser": "node",
}
`

func TestADevcontainerAsPeopleWriteIt(t *testing.T) {
	r := resolve(t, base("/project/shop/.devcontainer/devcontainer.json", devcontainerText, map[string]string{"USER": "me"}))
	if r.Spec == nil {
		t.Fatal(r.Problems)
	}
	wantYAML(t, r.Spec, `
image: mcr.microsoft.com/devcontainers/javascript-node:1-20
labels: {devcontainer.name: Node & Postgres}
envs: {PROJECT: shop, ME: me, GONE: "", BIN: shop/bin}
mounts: ["/project/shop/.cache:/cache:rw"]
volumes: ["history:/history"]
tmpfs: ["/scratch:64m"]
ports: ["3000:3000", "8081:81"]
post_create: [echo one, npm ci, npm run 'build it', npm start]
security: {cap_add: [SYS_PTRACE], seccomp_unconfined: true}
user: node
match_user: /workspaces/shop
workspace: {source: /project/shop, target: /workspaces/shop, mount: true}
`)
	says(t, "notice", r.Notices, "containerEnv.GONE: The variable NOPE", "remoteEnv.PATH: PATH was left out",
		"remoteEnv.UNSET", "mounts[1]: Volumes last as long", "forwardPorts[1]: db:5432 is a port of a service", "portsAttributes", "postStartCommand", "customizations")
}

func TestTheWorkspaceOfADevcontainer(t *testing.T) {
	for text, want := range map[string]string{
		`{"image": "x", "workspaceFolder": "/src"}`: "image: x\nworking_dir: /src\nmatch_user: /src\nworkspace: {source: /project, target: /src, mount: true}\n",
		`{"image": "x", "workspaceFolder": "/w/${localWorkspaceFolderBasename}", "workspaceMount": "source=${localWorkspaceFolder}/sub,target=/w,type=bind"}`: "image: x\nworking_dir: /w/project\nmatch_user: /w/project\nworkspace: {source: /project/sub, target: /w, mount: true}\n",
		`{"image": "x", "workspaceMount": "", "workspaceFolder": "/"}`:                                                                                        "image: x\nworking_dir: /\n",
		`{"image": "x", "postCreateCommand": ["a", "b c", "${containerWorkspaceFolder}"]}`:                                                                    "image: x\npost_create: [\"a 'b c' /workspaces/project\"]\nmatch_user: /workspaces/project\nworkspace: {source: /project, target: /workspaces/project, mount: true}\n",
		`{"image": "x", "updateRemoteUserUID": false}`:                                                                                                        "image: x\nworkspace: {source: /project, target: /workspaces/project, mount: true}\n",
	} {
		wantYAML(t, good(t, base("/project/.devcontainer.json", text, nil)), want)
	}
	req := base("/project/devcontainer.json", `{"image": "x"}`, nil)
	req.ConfigYaml = []byte("workspace: {mount: false, exclude_patterns: [node_modules]}\n")
	wantYAML(t, good(t, req), "image: x\nmatch_user: /workspaces/project\nworkspace: {source: /project, target: /workspaces/project, exclude_patterns: [node_modules]}\n")
}

func TestAVariableThatNeedsTheImagesOwnIsLeftOutRatherThanBroken(t *testing.T) {
	req := base("/project/devcontainer.json", `{
  "image": "x", "workspaceMount": "",
  "containerEnv": {"PATH": "/opt/bin:${containerEnv:PATH}", "MINE": "a"},
  "remoteEnv": {"PATH": "${containerEnv:PATH}:/x", "OTHER": "${containerEnv:MINE}/b", "SHELL": "${containerEnv:SHELL:/bin/sh}"}
}`, nil)
	// A PATH without the image's own would find no command.
	wantYAML(t, good(t, req), "image: x\nenvs: {MINE: a, OTHER: a/b, SHELL: /bin/sh}\n")
	says(t, "notice", resolve(t, req).Notices, "containerEnv.PATH: PATH was left out, because", "remoteEnv.PATH: PATH was left out, because", "remoteEnv.SHELL: The environment of the container")
}

func TestAComposeFilesValuesOfTheWrongKindAreNotDropped(t *testing.T) {
	r := resolve(t, base("/project/compose.yaml", "services:\n  a: {image: x, x-agbox: primary, depends_on: b, deploy: 5, ulimits: 7}\n  b: {image: y, healthcheck: curl}\n", nil))
	says(t, "problem", r.Problems, "services.a.depends_on: Here should be a map", "services.a.deploy: Here should be a map", "services.a.ulimits: Here should be a map",
		"services.b.healthcheck: Here should be a map")
}

func TestADevcontainersValuesOfTheWrongKindAreNotDropped(t *testing.T) {
	r := resolve(t, base("/project/devcontainer.json", `{"image": 5, "name": ["a"], "remoteUser": 1000, "workspaceFolder": {}}`, nil))
	says(t, "problem", r.Problems, "image: Here should be text", "name: Here should be text", "remoteUser: Here should be text", "workspaceFolder: Here should be text")
}

func TestVariablesOfTheShellAreLeftToIt(t *testing.T) {
	req := base("/project/devcontainer.json", `{"image": "x", "workspaceMount": "", "postCreateCommand": "echo ${HOME} ${X:-y} $Z ${localWorkspaceFolderBasename}",
  "mounts": ["source=cache-${devcontainerId},target=/c,type=volume"]}`, nil)
	wantYAML(t, good(t, req), "image: x\npost_create: [\"echo ${HOME} ${X:-y} $Z project\"]\nvolumes: [\"cache-sandbox:/c\"]\n")
	says(t, "notice", resolve(t, req).Notices, "mounts[0]: Volumes last as long")
}

func TestForwardedPortsAreTheSameOnBothSides(t *testing.T) {
	req := base("/project/devcontainer.json", `{"image": "x", "workspaceMount": "", "forwardPorts": [3000, "localhost:3001", "3002", "db:5432"], "appPort": ["8080:80"]}`, nil)
	wantYAML(t, good(t, req), "image: x\nports: [\"3000:3000\", \"3001:3001\", \"3002:3002\", \"8080:80\"]\n")
}

func TestABadDevcontainerSaysWhereAndWhatToDo(t *testing.T) {
	r := resolve(t, base("/project/devcontainer.json", `{
  "build": {"dockerfile": "Dockerfile"},
  "dockerComposeFile": "compose.yaml", "service": "web",
  "forwardPorts": [99999],
  "mounts": ["type=npipe,target=/x", "source=/x"],
  "containerEnv": {"A": []},
  "postCreateCommand": 7,
  "workspaceMount": "type=volume,source=x,target=/y"
}`, nil))
	says(t, "problem", r.Problems, "dockerComposeFile[0]: The compose file compose.yaml did not come", "forwardPorts[0]", "mounts[0]: \"npipe\"", "mounts[1]: The mount has no target",
		"containerEnv.A", "postCreateCommand: A command is", "workspaceMount: The workspace is a folder of the host")
	for _, text := range []string{"[]", "{", "{}}", "{\"image\" \"x\"}"} {
		if r := resolve(t, base("/project/devcontainer.json", text, nil)); len(r.Problems) != 1 || r.Problems[0].GetLine() != 1 {
			t.Errorf("%s: %v", text, r.Problems)
		}
	}
}

func TestVariablesAreReplaced(t *testing.T) {
	values := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "a", "EMPTY": ""}[name]
		return v, ok
	}
	for text, want := range map[string]string{
		"": "", "plain": "plain", "$A": "a", "${A}": "a", "x${A}y$A.z": "xaya.z", "$$A": "$A", "${B-d}": "d", "${EMPTY-d}": "", "${EMPTY:-d}": "d",
		"${B:-${A}}": "a", "${B:-x${C:-y}z}w": "xyzw", "${A:+set}": "set", "${B+set}": "", "${A:?why}": "a", "${B}": "", "${EMPTY+x}": "x",
	} {
		if got, _, err := document.Interpolate(text, values); err != nil || got != want {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"$", "${", "${}", "${A", "$1", "${B:?}", "${B?why}", "${A:}", "${A!x}", strings.Repeat("${B:-", 20) + strings.Repeat("}", 20)} {
		if got, _, err := document.Interpolate(text, values); err == nil {
			t.Errorf("%s: %q", text, got)
		}
	}
}
