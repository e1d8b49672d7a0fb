package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"buf.build/go/protovalidate"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/admission"
	"github.com/agbox/agbox/docs"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
)

// ResolveSpec answers as the daemon does.
func (d *scripted) ResolveSpec(_ context.Context, in *agboxv1.ResolveSpecRequest) (*agboxv1.ResolveSpecResponse, error) {
	r := spec.Resolve(spec.Input{Request: in.GetCreate(), Rules: protovalidate.GlobalValidator})
	return &agboxv1.ResolveSpecResponse{
		CreateSpec: r.Spec, Problems: r.Problems, Notices: r.Notices, HostRequests: admission.HostRequests(in.GetCreate(), r, nil),
	}, nil
}

// inFolder makes files and changes to their folder.
func inFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	t.Setenv("HOME", "/home/me")
	return dir
}

// flags parses a command line of create without running it.
func flags(t *testing.T, args ...string) (*cli, *agboxv1.CreateSandboxRequest, error) {
	t.Helper()
	c := newCLI(t, "")
	var o createOptions
	cmd := c.createCommand()
	cmd.ResetFlags()
	o.addFlags(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	input, err := o.request(t.Context(), c.app, nil, nil, nil)
	if err != nil {
		return c, nil, err
	}
	return c, input.Request, nil
}

func TestEverythingCanBeSaidInFlags(t *testing.T) {
	dir := inFolder(t, nil)
	_, in, err := flags(t, "--image", "x", "--build", "{context: web, target: t}", "--platform", "linux/arm64", "--pull", "if-missing", "--label", "a=b", "-e", "A=1", "--secret-env", "B=2", "--mount", "./src:/src:rw", "--mount", "~/x:/x",
		"--copy", "a:/a", "--workspace", ".:/w", "--exclude", "*.log", "--use-gitignore", "--tracked", "--tool", "git", "-p", "127.0.0.1:8080:80", "-p", "1-2:3-4/udp", "--tmpfs", "/t:64m", "--volume", "v:/v:ro",
		"--service", "db=redis:7", "--service", "{name: web, image: y, depends_on: [db], healthcheck: {test: z, interval: 5s}}", "--cpus", "1.5", "-m", "4g", "--disk", "10g", "--gpus", "all",
		"--shm-size", "128m", "--pids-limit", "100", "--ulimit", "nofile=1:2", "-u", "1000", "--match-user", "/src", "-w", "/w", "--hostname", "h", "--entrypoint", "run -x", "--prepare", "fetch", "--post-create", "make", "--idle-ttl", "7d", "--idle-action", "remove", "--cleanup-ttl", "14d", "--revival", "revive", "--network", "internal",
		"--cap-add", "SYS_PTRACE", "--cap-drop", "NET_RAW", "--device", "/dev/kvm", "--privileged", "--allow-new-privileges", "--seccomp-unconfined", "--read-only", "--allow-dangerous-mounts", "--writable-config", "--allow-host")
	if err != nil {
		t.Fatal(err)
	}
	report := new(document.Report)
	want := new(agboxv1.CreateSpec)
	r := document.Reader{Report: report}
	r.Message(document.YAML("want", []byte(`
image: x
build: {context: "`+dir+`/web", target: t}
platform: linux/arm64
pull_policy: if_missing
labels: {a: b}
envs: {A: "1", B: "2"}
secret_envs: [B]
mounts: ["`+dir+`/src:/src:rw", "~/x:/x"]
copies: ["`+dir+`/a:/a"]
workspace: {source: "`+dir+`", target: /w, mount: false, exclude_patterns: ["*.log"], use_gitignore: true, tracked: true}
builtin_tools: [git]
ports: ["127.0.0.1:8080:80", "1-2:3-4/udp"]
tmpfs: ["/t:64m"]
volumes: ["v:/v:ro"]
services: [{name: db, image: "redis:7", required: true}, {name: web, image: y, required: true, depends_on: [db], healthcheck: {test: z, interval: 5s}}]
cpu_limit: 1.5
memory_limit: 4g
disk_limit: 10g
gpus: all
shm_size: 128m
pids_limit: 100
ulimits: ["nofile=1:2"]
user: 1000
match_user: /src
working_dir: /w
hostname: h
entrypoint: [run, -x]
prepare: [fetch]
post_create: [make]
idle_ttl: 7d
idle_action: remove
cleanup_ttl: 14d
revival: revive
network: internal
security: {cap_add: [SYS_PTRACE], cap_drop: [NET_RAW], devices: [/dev/kvm], privileged: true, allow_new_privileges: true, seccomp_unconfined: true, read_only_root: true, allow_dangerous_mounts: true, writable_config: true, allow_host: true}
`), report), want.ProtoReflect(), "")
	if len(report.Problems) > 0 || !proto.Equal(in.GetCreateSpec(), want) {
		t.Errorf("problems %v, got\n%v\nwant\n%v", report.Problems, in.GetCreateSpec(), want)
	}
	// A new field needs a flag. "agbox agent spawn" has those of the agent.
	given := in.GetCreateSpec().ProtoReflect()
	for i := range given.Descriptor().Fields().Len() {
		if f := given.Descriptor().Fields().Get(i); !given.Has(f) && f.Name() != "name" && f.Name() != "command" && f.Name() != "agent" && !document.FilledIn(f.Name()) {
			t.Errorf("no flag says %s", f.Name())
		}
	}
}

func TestFlagsThatCannotBeMeantAreRefused(t *testing.T) {
	inFolder(t, nil)
	for _, args := range [][]string{
		{"--mount", "x"}, {"--copy", "x"}, {"-p", "http"}, {"--tmpfs", ":x"}, {"--volume", "x"}, {"--ulimit", "x"}, {"--service", "{name: a, imagee: b}"}, {"--service", "{"},
		{"--revival", "x"}, {"--network", "x"}, {"--pull", "x"}, {"--idle-ttl", "10"}, {"--cleanup-ttl", "10"}, {"--idle-action", "sleep"}, {"--label", "x"}, {"--workspace", "a", "--mount-workspace", "b"},
	} {
		_, _, err := flags(t, append([]string{"--image", "x"}, args...)...)
		if usage := new(usageError); !errors.As(err, &usage) || !strings.HasSuffix(err.Error(), ".") || !strings.HasPrefix(err.Error(), "--") {
			t.Errorf("%v: %v", args, err)
		}
	}
	if _, _, err := flags(t); err == nil || !strings.Contains(err.Error(), "--image") {
		t.Errorf("without anything: %v", err)
	}
}

// merged returns the result of a sandbox file and a command line.
func merged(t *testing.T, args ...string) *agboxv1.CreateSpec {
	t.Helper()
	_, in, err := flags(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	rules := protovalidate.GlobalValidator
	r := spec.Resolve(spec.Input{Request: in, Rules: rules})
	if len(r.Problems) > 0 {
		t.Fatal(r.Problems)
	}
	return r.Spec
}

func TestAWorkspaceToCopyIsNotBoundBecauseTheFileBindsOne(t *testing.T) {
	dir := inFolder(t, map[string]string{"agbox.yaml": "image: x\nworkspace: {source: /host, mount: true, target: /w}\n"})
	if w := merged(t, "--workspace", ".").GetWorkspace(); w.GetMount() || w.GetSource() != dir || w.GetTarget() != "/w" {
		t.Errorf("the workspace is %v", w)
	}
	if w := merged(t).GetWorkspace(); !w.GetMount() || w.GetSource() != "/host" {
		t.Errorf("without a flag, the workspace is %v", w)
	}
}

func TestAFlagTakesBackWhatTheFileGivesUp(t *testing.T) {
	inFolder(t, map[string]string{"agbox.yaml": `image: x
workspace: {source: /w, use_gitignore: true, tracked: true}
security: {privileged: true, allow_new_privileges: true, seccomp_unconfined: true, read_only_root: true, allow_dangerous_mounts: true, writable_config: true, allow_host: true}
`})
	got := merged(t, "--privileged=false", "--allow-new-privileges=false", "--seccomp-unconfined=false", "--read-only=false", "--allow-dangerous-mounts=false", "--writable-config=false", "--allow-host=false", "--use-gitignore=false", "--tracked=false")
	s := got.GetSecurity()
	if s.GetPrivileged() || s.GetAllowNewPrivileges() || s.GetSeccompUnconfined() || s.GetReadOnlyRoot() || s.GetAllowDangerousMounts() || s.GetWritableConfig() || s.GetAllowHost() || got.GetWorkspace().GetUseGitignore() || got.GetWorkspace().GetTracked() {
		t.Errorf("got %v", got)
	}
}

func TestAFileCannotLowerAWallThatOnlyAFlagLowers(t *testing.T) {
	_, socket := serveScripted(t)
	for yaml, flag := range map[string]string{
		"security: {privileged: true}":                                          "--privileged",
		"security: {seccomp_unconfined: true}":                                  "--seccomp-unconfined",
		"security: {allow_dangerous_mounts: true}":                              "--allow-dangerous-mounts",
		"security: {writable_config: true}":                                     "--writable-config",
		"security: {cap_add: [SYS_ADMIN]}":                                      "--cap-add SYS_ADMIN",
		"security: {devices: [/dev/kvm]}":                                       "--device /dev/kvm",
		"ports: [\"0.0.0.0:80:80\"]":                                            "--publish",
		"services: [{name: s, image: y, ports: [\"192.0.2.1:80:80\"]}]":         "--publish",
		"services: [{name: s, image: y, security: {privileged: true}}]":         "--service",
		"services: [{name: s, image: y, security: {cap_add: [SYS_PTRACE]}}]":    "--service",
		"services: [{name: s, image: y, security: {devices: [/dev/fuse]}}]":     "--service",
		"services: [{name: s, image: y, security: {seccomp_unconfined: true}}]": "--service",
	} {
		inFolder(t, map[string]string{"agbox.yaml": "image: x\n" + yaml + "\n"})
		for _, words := range []string{"create --trust", "config validate agbox.yaml"} {
			code, out, errs := agbox(t, socket, strings.Fields(words)...)
			if code != codeUsage || out != "" || !strings.Contains(errs, "agbox.yaml:2:") || !strings.Contains(errs, flag) {
				t.Errorf("%s: %s: code %d, %q, %q", yaml, words, code, out, errs)
			}
		}
	}
}

func TestAllFlagsThatAreWrongAreToldAtOnce(t *testing.T) {
	inFolder(t, nil)
	code, _, errs := agbox(t, "", "create", "--image", "x", "-p", "http", "--mount", "y", "--revival", "z", "-p", "99999")
	lines := strings.Split(strings.TrimSuffix(errs, "\n"), "\n")
	if code != codeUsage || len(lines) != 4 || !strings.HasPrefix(lines[0], "agbox: --revival") || !strings.HasPrefix(lines[3], "agbox: --publish: \"99999\"") {
		t.Errorf("code %d, %q", code, lines)
	}
}

func TestABadFileIsNoExitCodeOfTheCommand(t *testing.T) {
	_, socket := serveScripted(t)
	inFolder(t, map[string]string{"bad.yaml": "imagee: x\n"})
	for words, want := range map[string]int{"run --rm -f bad.yaml -- true": codeExecAgbox, "create -f bad.yaml": codeUsage, "config show -f bad.yaml": codeUsage} {
		if code, _, errs := agbox(t, socket, strings.Fields(words)...); code != want || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "bad.yaml:1:1: imagee") {
			t.Errorf("%s: code %d, %q", words, code, errs)
		}
	}
}

func TestASandboxThatFailsIsNoExitCodeOfTheCommandThatNeverRan(t *testing.T) {
	_, socket := serveScripted(t)
	inFolder(t, nil)
	code, _, errs := agbox(t, socket, "run", "--rm", "missing", "true")
	if code != codeExecAgbox || strings.Count(errs, "There is no image missing.") != 1 {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestRunDoesNotSayThatACommandRunsOnWhoseSandboxItRemoves(t *testing.T) {
	d, socket := serveScripted(t)
	inFolder(t, nil)
	for i, args := range []string{"run good wait stubborn", "run --rm good wait stubborn"} {
		c := newCLI(t, socket)
		c.out.wrote = func() {
			for range 3 {
				c.signals <- syscall.SIGINT
			}
		}
		code := c.exec(t.Context(), strings.Fields(args)...)
		if removed := i == 1; code != 130 || strings.Contains(c.errs.String(), "The command keeps running") == removed {
			t.Errorf("%s: code %d, %q", args, code, c.errs.String())
		}
	}
	if state := d.boxes[1].GetState(); state != agboxv1.SandboxState_SANDBOX_STATE_DELETED {
		t.Errorf("it is %v", state)
	}
}

func TestTheFileOfTheFolderIsUsedAndThatIsSaid(t *testing.T) {
	dir := inFolder(t, map[string]string{
		"agbox.yaml": "image: good\nbase: [sub/compose.yaml, {file: dev.json, format: devcontainer}]\n", "other.yaml": "image: other\n", "empty.yaml": "",
		"sub/compose.yaml": "services: {db: {image: \"x:${TAG}${UNSET}\", environment: [PASS, Q=1], labels: {a: $DOTTED}}}\n", "sub/.env": "# x\nDOTTED=\"a b\"\nTAG=no\nUNSET = from file # not this\n",
		"dev.json": `{"containerEnv": {"A": "${localEnv:WHO}"}}`,
	})
	c, in, err := flags(t)
	if err != nil || string(in.GetConfigYaml()) == "" || in.GetConfigDir() != dir || in.GetConfigPath() != "agbox.yaml" || in.GetHomeDir() != "/home/me" {
		t.Fatalf("got %v, %v", in, err)
	}
	if said := c.errs.String(); said != "agbox: Using the agbox.yaml in this folder.\n" {
		t.Errorf("said %q", said)
	}
	if len(in.GetBaseFiles()) != 2 || in.GetBaseFiles()[0].GetPath() != filepath.Join(dir, "sub/compose.yaml") || in.GetBaseFiles()[1].GetFormat() != agboxv1.ConfigFormat_CONFIG_FORMAT_DEVCONTAINER {
		t.Errorf("bases %v", in.GetBaseFiles())
	}
	got := in.GetBaseFiles()[0].GetVariables()
	if len(got) != 4 || got["TAG"] != "from-TAG" || got["PASS"] != "from-PASS" || got["DOTTED"] != "from-DOTTED" || got["UNSET"] != "from file" {
		t.Errorf("variables %v", got)
	}
	if got := in.GetBaseFiles()[1].GetVariables(); len(got) != 1 || got["WHO"] != "from-WHO" {
		t.Errorf("variables %v", got)
	}

	c, in, err = flags(t, "--image", "y")
	if err != nil || in.GetConfigYaml() != nil || !strings.Contains(c.errs.String(), "uses both") {
		t.Errorf("got %v, %v, %q", in, err, c.errs.String())
	}
	c, in, err = flags(t, "--image", "y", "-f", "other.yaml")
	if err != nil || string(in.GetConfigYaml()) != "image: other\n" || c.errs.String() != "" {
		t.Errorf("got %v, %v, %q", in, err, c.errs.String())
	}
	if _, in, err = flags(t, "-f", "empty.yaml"); err != nil || in.GetConfigYaml() == nil {
		t.Errorf("an empty file: %v, %v", in, err)
	}
	for _, args := range [][]string{{"-f", "nosuch.yaml"}, {"-f", "sub"}, {"--compose", "nosuch"}} {
		if _, _, err := flags(t, args...); err == nil || exitCode(err) != codeUsage || !strings.Contains(err.Error(), "cannot be read") {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestConfigShowsWhatWouldBeStored(t *testing.T) {
	_, socket := serveScripted(t)
	dir := inFolder(t, map[string]string{
		"agbox.yaml":   "image: good\nenvs: {A: file}\nmounts: [./x:/x]\nbase: {file: compose.yaml, primary: web}\n",
		"compose.yaml": "services: {web: {image: base, tty: true}, db: {image: y}}\n",
		"bad.yaml":     "imagee: x\nports: [http]\n",
	})
	code, out, errs := agbox(t, socket, "config", "show", "-e", "B=2", "--memory", "1g")
	want := "image: good\nmounts:\n  - source: " + dir + "/x\n    target: /x\nservices:\n  - name: db\n    image: \"y\"\n    required: true\nenvs:\n  A: file\n  B: \"2\"\nmemory_limit: 1g\nhostname: web\n"
	if code != 0 || out != want {
		t.Errorf("code %d, stdout\n%s", code, out)
	}
	if want := "agbox: Using the agbox.yaml in this folder.\nagbox: note: " + dir + "/compose.yaml:1:31: services.web.tty: tty of service web is not supported and was left out.\n"; errs != want {
		t.Errorf("stderr %q", errs)
	}
	if code, out, _ := agbox(t, socket, "config", "show", "-o", "json", "agbox.yaml"); code != 0 || !strings.Contains(out, `"image": "good"`) {
		t.Errorf("code %d, stdout\n%s", code, out)
	}
	if code, out, _ := agbox(t, socket, "config", "validate"); code != 0 || out != "The sandbox spec is valid. Image: good, with 1 service.\n" {
		t.Errorf("code %d, stdout %q", code, out)
	}
	code, out, errs = agbox(t, socket, "config", "validate", "bad.yaml")
	if want := "agbox: bad.yaml:1:1: imagee: There is no field \"imagee\" here: write image if that is meant.\nagbox: bad.yaml:2:9: ports[0]: "; code != codeUsage || out != "" || !strings.HasPrefix(errs, want) {
		t.Errorf("code %d, stdout %q, stderr %q", code, out, errs)
	}
	code, out, errs = agbox(t, socket, "create", "-f", "bad.yaml")
	if code != codeUsage || out != "" || strings.Count(errs, "\n") != 2 {
		t.Errorf("create: code %d, stdout %q, stderr %q", code, out, errs)
	}
}

func TestInitWritesAFileThatIsValidHoweverMuchIsSwitchedOn(t *testing.T) {
	dir := inFolder(t, map[string]string{".devcontainer/devcontainer.json": `{"workspaceMount": ""}`, "compose.yaml": "services: {web: {image: x}}\n"})
	if code, out, errs := agbox(t, "", "init"); code != 0 || out != "" || !strings.Contains(errs, "Wrote agbox.yaml") {
		t.Fatalf("code %d, stdout %q, stderr %q", code, out, errs)
	}
	if code, _, errs := agbox(t, "", "init"); code != codeConflict || !strings.Contains(errs, "--force") {
		t.Errorf("again: code %d, stderr %q", code, errs)
	}
	if err := os.WriteFile("agbox.yaml", []byte(strings.Repeat("x", 1<<16)), 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := agbox(t, "", "init", "--force"); code != 0 {
		t.Errorf("by force: code %d", code)
	}
	text, err := os.ReadFile("agbox.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for line := range strings.Lines(string(text)) {
		if rest, off := strings.CutPrefix(line, "#"); off && !strings.HasPrefix(rest, " ") {
			line = rest
		} else if off && strings.HasPrefix(rest, "  ") {
			line = rest
		}
		all.WriteString(line)
	}
	rules := protovalidate.GlobalValidator
	for what, text := range map[string]string{"as it is": string(text), "all on": all.String()} {
		if err := os.WriteFile("agbox.yaml", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		_, in, err := flags(t)
		if err != nil {
			t.Fatal(err)
		}
		r := spec.Resolve(spec.Input{Request: in, Rules: rules})
		if len(r.Problems) > 0 || r.Spec.GetImage() != "debian:12" {
			t.Errorf("%s: %v", what, r.Problems)
		}
		if what == "all on" && (len(r.Spec.GetServices()) != 2 || r.Spec.GetWorkspace().GetSource() != dir || r.Spec.GetSecurity() == nil) {
			t.Errorf("not all was switched on: %v", r.Spec)
		}
	}
}

func TestTheSchemaIsPrinted(t *testing.T) {
	if code, out, _ := agbox(t, "", "config", "schema"); code != 0 || out != string(docs.Schema) || !strings.Contains(out, "json-schema.org") {
		t.Errorf("code %d, %.200s", code, out)
	}
}

func TestRunSaysOnATerminalThatItsSandboxIsKept(t *testing.T) {
	_, socket := serveScripted(t)
	inFolder(t, nil)
	for args, kept := range map[string]bool{"run good true": true, "run --rm good true": false} {
		c := newCLI(t, socket)
		c.width = func() int { return 80 }
		c.exec(t.Context(), strings.Fields(args)...)
		if strings.Contains(c.errs.String(), " is kept. Remove it with `agbox rm ") != kept {
			t.Errorf("%s: %q", args, c.errs.String())
		}
	}
}
