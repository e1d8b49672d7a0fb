package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
)

func requests(t *testing.T, req *agboxv1.CreateSandboxRequest) string {
	t.Helper()
	c := bare(t)
	result := c.merge(req)
	c.hostSide(newRequestList(req, result))
	var lines []string
	for _, r := range HostRequests(req, result, nil).GetRequests() {
		mark := ""
		if r.GetDangerous() {
			mark = "! "
		}
		lines = append(lines, fmt.Sprintf("%s%s: %s (%s:%d %s)", mark, r.GetKind(), r.GetText(), filepath.Base(r.GetFile()), r.GetLine(), r.GetField()))
	}
	return strings.Join(lines, "\n")
}

func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestWhatAFileAsksOfTheHostIsListed(t *testing.T) {
	outside, dir := folder(t), folder(t)
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Join(dir, "data"), outside} {
		if err := os.WriteFile(filepath.Join(name, "task.md"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for yaml, want := range map[string]string{
		"workspace: .": "",
		"copies: [\"data:/x\"]\nenvs: {A: b}\npost_create: [make]\nmemory_limit: 1g\nvolumes: [{name: v, target: /v}]": "",
		"copies: [\"link:/x\"]":                  "! copy: " + dir + "/link (which is " + outside + ") to /x (agbox.yaml:2 copies[0].source)",
		"copies: [\"" + outside + ":/x\"]":       "! copy: " + outside + " to /x (agbox.yaml:2 copies[0].source)",
		"mounts: [\"data:/x\"]":                  "mount: " + dir + "/data at /x, read-only (agbox.yaml:2 mounts[0].source)",
		"mounts: [\"data:/x:rw\"]":               "! mount: " + dir + "/data at /x, writable (agbox.yaml:2 mounts[0].source)",
		"mounts: [\"link:/x\"]":                  "! mount: " + dir + "/link (which is " + outside + ") at /x, read-only (agbox.yaml:2 mounts[0].source)",
		"workspace: {source: ., mount: true}":    "! mount: " + dir + " at /workspace, writable (agbox.yaml:2 workspace.mount)",
		"agent: {work: data/task.md}":            "",
		"agent: {work: link/task.md}":            "! copy: " + dir + "/link/task.md (which is " + outside + "/task.md) to the agent, as its work (agbox.yaml:2 agent.work)",
		"workspace: " + outside:                  "! copy: " + outside + " to /workspace (agbox.yaml:2 workspace.source)",
		"ports: [\"8080:80\", \"53/udp\"]":       "port: port 8080 of 127.0.0.1 leads to port 80/tcp (agbox.yaml:2 ports[0].container_port)\nport: a free port of 127.0.0.1 leads to port 53/udp (agbox.yaml:2 ports[1].container_port)",
		"gpus: all":                              "! device: GPUs: all (agbox.yaml:2 gpus)",
		"pids_limit: 100000":                     "limit: up to 100000 processes and threads, instead of 4096 (agbox.yaml:2 pids_limit)",
		"memory_limit: unlimited":                "limit: as much memory as this machine has (agbox.yaml:2 memory_limit)",
		"pids_limit: 100":                        "",
		"security: {allow_host: true}":           "! security: it may reach the addresses of this machine, and metadata addresses (agbox.yaml:2 security.allow_host)",
		"security: {allow_new_privileges: true}": "! security: programs may gain new privileges (agbox.yaml:2 security.allow_new_privileges)",
		"security: {privileged: true}":           "! security: privileged: it is root on this machine (agbox.yaml:2 security.privileged)",
		"ulimits: [rtprio=50, nofile=10]":        "! limit: ulimit rtprio 50: its programs may run before all others of this machine, which then stand still (agbox.yaml:2 ulimits[0])",
		"ulimits: [\"memlock=1:2\", nice=1, rttime=1]": "! limit: ulimit memlock 1:2: its programs may keep memory of this machine from being swapped (agbox.yaml:2 ulimits[0])\n" +
			"! limit: ulimit nice 1: its programs may get more of the processors than others of this machine (agbox.yaml:2 ulimits[1])\n" +
			"! limit: ulimit rttime 1: its programs may run before others of this machine for longer (agbox.yaml:2 ulimits[2])",
		"services: [{name: s, image: y, ulimits: [rtprio=1]}]":                    "! limit: service s: ulimit rtprio 1: its programs may run before all others of this machine, which then stand still (agbox.yaml:2 services[0].ulimits[0])",
		"security: {cap_drop: [NET_RAW]}":                                         "",
		"security: {cap_add: [SYS_PTRACE]}":                                       "! security: capability SYS_PTRACE (agbox.yaml:2 security.cap_add[0])",
		"services: [{name: s, image: y, ports: [80]}]":                            "port: a free port of 127.0.0.1 leads to port 80/tcp of service s (agbox.yaml:2 services[0].ports[0].container_port)",
		"services: [{name: s, image: \"localhost:80/y\"}]":                        "! image: service s: localhost:80/y: the engine asks this machine or an address near it (agbox.yaml:2 services[0].image)",
		"agent: {stack: {name: team}}":                                            "stack: the agent makes a stack team: what you send on a stream to stacks of this name reaches its agents too (agbox.yaml:2 agent.stack.name)",
		"services: [{name: s, image: y, security: {allow_new_privileges: true}}]": "! security: service s: programs may gain new privileges (agbox.yaml:2 services[0].security.allow_new_privileges)",
	} {
		req := &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("image: x\n" + yaml + "\n"), ConfigDir: dir, HomeDir: outside}
		if got := requests(t, req); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", yaml, got, want)
		}
	}
}

func TestOnlyWhatWasAgreedToIsAdmitted(t *testing.T) {
	outside, dir := folder(t), folder(t)
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	link := func(t *testing.T) {
		if err := errors.Join(os.Remove(data), os.Symlink(outside, data)); err != nil {
			t.Fatal(err)
		}
	}
	for yaml, says := range map[string]string{
		"mounts: [\"data:/x\"]":              "It now requests mount " + data + " (which is " + outside + ")",
		"copies: [\"data:/x\"]":              "It now requests copy " + data + " (which is " + outside + ")",
		"ports: [80]\ncopies: [\"data:/x\"]": "It now requests copy " + data + " (which is " + outside + ")",
	} {
		req := &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("image: x\n" + yaml + "\n"), ConfigDir: dir, HomeDir: outside, UntrustedFiles: true}
		c := bare(t)
		resolve := func() *spec.Result { return c.Resolve(t.Context(), req) }
		req.Agreed = c.HostRequests(t.Context(), req, resolve())
		if err := newRequestList(req, resolve()).stillAgreed(); err != nil {
			t.Errorf("%s: unchanged: %v", yaml, err)
		}
		link(t)
		if err := newRequestList(req, resolve()).stillAgreed(); fault.ReasonOf(err) != agboxv1.ErrorReason_HOST_REQUESTS_CHANGED || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: swapped: %v, want %q", yaml, err, says)
		}
		req.Agreed = nil
		if err := newRequestList(req, resolve()).stillAgreed(); err != nil {
			t.Errorf("%s: of a caller that agreed to nothing: %v", yaml, err)
		}
		if err := errors.Join(os.Remove(data), os.Mkdir(data, 0o700)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSourcesOfUntrustedFilesAreStoredAsThePathsThatWereChecked(t *testing.T) {
	outside, dir := folder(t), folder(t)
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, untrusted := range []bool{true, false} {
		req := &agboxv1.CreateSandboxRequest{
			ConfigYaml: []byte("image: x\nmounts: [\"link:/x\"]\ncopies: [\"link:/y\"]\nworkspace: link\nagent: {work: link}\n"), ConfigDir: dir, HomeDir: "/nowhere", UntrustedFiles: untrusted,
		}
		asked := newRequestList(req, bare(t).merge(req))
		s := asked.result.Draft()
		want := filepath.Join(dir, "link")
		if untrusted {
			want = outside
		}
		_ = asked.requests() // decides where they lead
		if err := errors.Join(os.Remove(filepath.Join(dir, "link")), os.Symlink("/elsewhere", filepath.Join(dir, "link"))); err != nil {
			t.Fatal(err)
		}
		asked.resolveSources(s)
		for _, got := range []string{s.GetMounts()[0].GetSource(), s.GetCopies()[0].GetSource(), s.GetWorkspace().GetSource(), s.GetAgent().GetWork()} {
			if got != want || s.GetSourcesResolved() != untrusted {
				t.Errorf("untrusted %t: a source is %s, want %s (%t)", untrusted, got, want, s.GetSourcesResolved())
			}
		}
		if err := errors.Join(os.Remove(filepath.Join(dir, "link")), os.Symlink(outside, filepath.Join(dir, "link"))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFileThatNobodyVouchesForMountsOnlyItsOwnFolderWritable(t *testing.T) {
	outside, dir := folder(t), folder(t)
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for yaml, refused := range map[string]bool{
		"mounts: [\".:/x:rw\"]":                  false,
		"mounts: [\"link:/x\"]":                  false,
		"mounts: [\"link:/x:rw\"]":               true,
		"mounts: [\"" + outside + ":/x:rw\"]":    true,
		"workspace: {source: ., mount: true}":    false,
		"workspace: {source: link, mount: true}": true,
		"workspace: " + outside:                  false,
	} {
		for _, untrusted := range []bool{true, false} {
			c := bare(t)
			result := c.Resolve(t.Context(), &agboxv1.CreateSandboxRequest{
				ConfigYaml: []byte("image: x\n" + yaml + "\n"), ConfigDir: dir, HomeDir: "/nowhere", UntrustedFiles: untrusted,
			})
			if got := len(result.Problems) > 0; got != (refused && untrusted) {
				t.Errorf("%s, untrusted %v: %v", yaml, untrusted, result.Problems)
			}
		}
	}
	byCaller := &agboxv1.CreateSandboxRequest{ConfigDir: dir, UntrustedFiles: true, ConfigYaml: []byte("image: x\n"), CreateSpec: &agboxv1.CreateSpec{
		Mounts: []*agboxv1.MountSpec{{Source: outside, Target: "/x", Writable: true}},
	}}
	if result := bare(t).Resolve(t.Context(), byCaller); len(result.Problems) > 0 {
		t.Errorf("the caller's own mount: %v", result.Problems)
	}
}

func TestWhatTheCallerAsksForItselfIsNotListed(t *testing.T) {
	dir := folder(t)
	yes := true
	req := &agboxv1.CreateSandboxRequest{
		ConfigYaml: []byte("image: x\n"), ConfigDir: dir, HomeDir: "/home/me", UntrustedFiles: true,
		CreateSpec: &agboxv1.CreateSpec{
			Mounts:   []*agboxv1.MountSpec{{Source: dir, Target: "/x", Writable: true}},
			Ports:    []*agboxv1.PortMapping{{ContainerPort: 80, HostIp: "0.0.0.0"}},
			Security: &agboxv1.SecuritySpec{Privileged: &yes, CapAdd: []string{"SYS_PTRACE"}},
		},
	}
	if got := requests(t, req); got != "" {
		t.Errorf("listed: %s", got)
	}
	if result := bare(t).merge(req); len(result.Problems) != 0 {
		t.Errorf("refused: %v", result.Problems)
	}
}

func TestSecretVariablesOfTheCallerAreListedBesideAFile(t *testing.T) {
	given := &agboxv1.CreateSpec{
		Envs:       map[string]string{"ANTHROPIC_API_KEY": "k", "MARKED": "k", "GH_TOKEN": "", "CI": "1"},
		SecretEnvs: []string{"MARKED"},
	}
	dir := folder(t)
	base := []*agboxv1.ConfigFile{{Path: dir + "/compose.yaml", Format: agboxv1.ConfigFormat_CONFIG_FORMAT_COMPOSE, Primary: "a", Content: []byte("services: {a: {image: x}}\n")}}
	const want = "! login: the variable ANTHROPIC_API_KEY, which you hand over yourself, to what this file describes\n" +
		"! login: the variable MARKED, which you hand over yourself, to what this file describes"
	for name, req := range map[string]*agboxv1.CreateSandboxRequest{
		"a sandbox file": {ConfigYaml: []byte("image: x\npost_create: [steal]\nenvs: {FILE_TOKEN: theirs}\n"), UntrustedFiles: true},
		"a base file":    {BaseFiles: base, UntrustedFiles: true},
	} {
		req.ConfigDir, req.CreateSpec = dir, given
		if got := strings.ReplaceAll(requests(t, req), " (.:0 )", ""); got != want {
			t.Errorf("%s: listed is %q, want %q", name, got, want)
		}
	}
	if got := requests(t, &agboxv1.CreateSandboxRequest{CreateSpec: given, UntrustedFiles: true}); got != "" {
		t.Errorf("without a file: %q", got)
	}
}

// home is a home with Git settings and a login of the GitHub CLI.
func home(t *testing.T) string {
	t.Helper()
	dir := folder(t)
	for name, text := range map[string]string{".gitconfig": "[user]\n", ".config/gh/hosts.yml": "token\n"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestAFileGetsAToolWithoutItsCredentials(t *testing.T) {
	dir, me := folder(t), home(t)
	for name, c := range map[string]struct {
		req          *agboxv1.CreateSandboxRequest
		login        bool
		notice, asks string
	}{
		"a file": {&agboxv1.CreateSandboxRequest{ConfigYaml: []byte("image: x\nbuiltin_tools: [git, gh]\n"), UntrustedFiles: true},
			false, "login of the GitHub CLI is not brought in", "tool: git, with " + me + "/.gitconfig (agbox.yaml:2 builtin_tools[0])"},
		"a flag": {&agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: "x", BuiltinTools: []string{"gh"}}, UntrustedFiles: true},
			true, "", ""},
		"a flag, beside a file that names it too": {&agboxv1.CreateSandboxRequest{
			ConfigYaml: []byte("image: x\nbuiltin_tools: [git, gh]\n"), CreateSpec: &agboxv1.CreateSpec{BuiltinTools: []string{"gh"}}, UntrustedFiles: true},
			true, "", "! login: " + me + "/.config/gh of gh, which you hand over yourself, to what this file describes"},
		"a caller of the API that vouches for its file": {&agboxv1.CreateSandboxRequest{ConfigYaml: []byte("image: x\nbuiltin_tools: [git, gh]\n")},
			true, "", "! login"},
	} {
		t.Run(name, func(t *testing.T) {
			c.req.ConfigDir, c.req.HomeDir = dir, me
			ctl := bare(t)
			result := ctl.merge(c.req)
			ctl.hostSide(newRequestList(c.req, result))
			if len(result.Problems) > 0 {
				t.Fatal(result.Problems)
			}
			login := false
			for _, p := range result.Draft().GetToolProjections() {
				login = login || p.GetSource() == filepath.Join(me, ".config/gh")
			}
			if login != c.login {
				t.Errorf("the login comes along: %v, want %v", login, c.login)
			}
			if told := fmt.Sprint(result.Notices); c.notice != "" && !strings.Contains(told, c.notice) || c.notice == "" && strings.Contains(told, "not brought in, because a file") {
				t.Errorf("notices: %s", told)
			}
			if got := requests(t, c.req); !strings.Contains(got, c.asks) || c.asks == "" && got != "" {
				t.Errorf("asks %q, want %q", got, c.asks)
			}
		})
	}
}

// worktree makes what git makes for a worktree, below a folder. It returns the worktree and
// its repository.
func worktree(t *testing.T, dir string) (tree, repository string) {
	t.Helper()
	tree, repository = filepath.Join(dir, "topic"), filepath.Join(dir, "app/.git")
	own := filepath.Join(repository, "worktrees/topic")
	for name, content := range map[string]string{
		tree + "/.git": "gitdir: " + own + "\n", own + "/gitdir": tree + "/.git\n", own + "/commondir": "../..\n", own + "/HEAD": "ref: refs/heads/topic\n",
		repository + "/HEAD": "ref: refs/heads/main\n", repository + "/config": "[core]\n\tbare = false\n", repository + "/objects/info/x": "", repository + "/refs/heads/x": "",
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return tree, repository
}

func TestTheRepositoryOfAMountedWorktreeIsAskedFor(t *testing.T) {
	tree, repository := worktree(t, folder(t))
	const with = "workspace: {source: ., mount: true}\nmounts: [\".:/x\"]"
	file := &agboxv1.CreateSandboxRequest{ConfigYaml: []byte("image: x\n" + with), ConfigPath: "agbox.yaml", ConfigDir: tree, UntrustedFiles: true}
	want := "mount: " + tree + " at /x, read-only (agbox.yaml:3 mounts[0].source)\n! mount: " + tree + " at /workspace, writable (agbox.yaml:2 workspace.mount)\n" +
		"! mount: " + repository + " at " + repository + ", writable: the git repository of this worktree (agbox.yaml:2 workspace.mount)"
	if got := requests(t, file); got != want {
		t.Errorf("asked for\n%s\nand not\n%s", got, want)
	}
	result := bare(t).Resolve(t.Context(), file)
	if m := result.Draft().GetMounts(); len(m) != 2 || m[1].GetSource() != repository || !m[1].GetWritable() || len(result.Problems) > 0 {
		t.Errorf("mounts %v, problems %v", m, result.Problems)
	}
}

func TestANoticeSaysWhyGitWillNotWork(t *testing.T) {
	tree, repository := worktree(t, folder(t))
	notices := func(w *agboxv1.WorkspaceSpec) string {
		t.Helper()
		result := bare(t).Resolve(t.Context(), &agboxv1.CreateSandboxRequest{CreateSpec: &agboxv1.CreateSpec{Image: "x", Workspace: w}})
		var all []string
		for _, n := range result.Notices {
			all = append(all, n.GetMessage())
		}
		if len(result.Problems) > 0 || len(all) > 0 && len(result.Draft().GetMounts()) > 0 {
			t.Errorf("problems %v, mounts %v", result.Problems, result.Draft().GetMounts())
		}
		return strings.Join(all, "\n")
	}
	copied, mounted := &agboxv1.WorkspaceSpec{Source: tree}, &agboxv1.WorkspaceSpec{Source: tree, Mount: new(true)}
	if got := notices(copied) + notices(mounted); got != "" {
		t.Errorf("without a reason: %s", got)
	}
	if got := notices(&agboxv1.WorkspaceSpec{Source: tree, Mount: new(true), Target: filepath.Dir(repository)}); !strings.Contains(got, "where the sandbox has something else: copy the folder in") {
		t.Errorf("in the way: %q", got)
	}
	if err := os.WriteFile(filepath.Join(repository, "worktrees/topic/gitdir"), []byte("/elsewhere/.git\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, w := range []*agboxv1.WorkspaceSpec{copied, mounted} {
		if got := notices(w); !strings.Contains(got, "git will not work in the workspace, because its .git file leads to no repository") {
			t.Errorf("a forged file: %q", got)
		}
	}
}

func TestAnImageThatTheEngineFetchesIsARequestOfItsFile(t *testing.T) {
	here := map[string]bool{"here": true}
	c := bare(t)
	c.o.Local = func(_ context.Context, want runtime.ImageRequest) (bool, error) { return here[want.Ref], nil }
	ask := func(yaml string, flags *agboxv1.CreateSpec) (*agboxv1.CreateSandboxRequest, string) {
		req := &agboxv1.CreateSandboxRequest{ConfigYaml: []byte(yaml), ConfigDir: folder(t), CreateSpec: flags}
		var lines []string
		for _, r := range c.HostRequests(t.Context(), req, c.merge(req)).GetRequests() {
			lines = append(lines, r.GetKind()+" "+r.GetText())
		}
		return req, strings.Join(lines, "\n")
	}
	for yaml, want := range map[string]string{
		"image: here\n":                                "",
		"image: there\n":                               "pull there, which the engine fetches from docker.io",
		"image: there\npull_policy: never\n":           "",
		"image: here\npull_policy: always\n":           "pull here, which the engine fetches from docker.io",
		"image: a.test:5000/b/c:1\n":                   "pull a.test:5000/b/c:1, which the engine fetches from a.test:5000",
		"image: localhost/b\n":                         "image localhost/b: the engine asks this machine or an address near it",
		"image: here\nservices: [{name: s, image: b}]": "pull service s: b, which the engine fetches from docker.io",
	} {
		if _, got := ask(yaml, nil); got != want {
			t.Errorf("%q asks for %q, want %q", yaml, got, want)
		}
	}
	if _, got := ask("labels: {a: b}\n", &agboxv1.CreateSpec{Image: "there"}); got != "" {
		t.Errorf("an image of the caller is asked about: %q", got)
	}
	req, _ := ask("image: there\nports: [80]\n", nil)
	req.Agreed = c.HostRequests(t.Context(), req, c.merge(req))
	still := func() error {
		list := newRequestList(req, c.merge(req))
		list.pulled = c.pulled(t.Context())
		return list.stillAgreed()
	}
	here["there"] = true
	if err := still(); err != nil {
		t.Errorf("an image that was fetched meanwhile: %v", err)
	}
	req.Agreed = c.HostRequests(t.Context(), req, c.merge(req))
	here["there"] = false
	if err := still(); err == nil || !strings.Contains(err.Error(), "now requests pull there") {
		t.Errorf("an image that was removed meanwhile: %v", err)
	}
	silent := fault.New(errdefs.ErrUnavailable, agboxv1.ErrorReason_ENGINE_UNAVAILABLE, "The engine does not answer.")
	c.o.Local = func(context.Context, runtime.ImageRequest) (bool, error) { return false, silent }
	if err := still(); fault.ReasonOf(err) != agboxv1.ErrorReason_ENGINE_UNAVAILABLE {
		t.Errorf("an engine that does not say whether it has an image: %v", err)
	}
	asked, got := ask("image: there\n", nil)
	if want := "pull there, which the engine fetches from docker.io"; got != want {
		t.Errorf("while the engine does not answer, the question has %q", got)
	}
	asked.Agreed = c.HostRequests(t.Context(), asked, c.merge(asked))
	if req = asked; still() != nil {
		t.Errorf("the pull was agreed to: %v", still())
	}
}
