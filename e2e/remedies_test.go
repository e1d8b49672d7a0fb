package e2e

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// remedy is a message that names a flag or command, and how to do what it says.
type remedy struct {
	// message is a part of the message, as it stands in the code.
	message string
	// file is the sandbox file that is refused, or compose the compose file. FOLDER and OUTSIDE
	// are its folder and one beside it.
	file, compose string
	// flags are what the message says. The message is gone with them.
	flags []string
	// then is the file afterwards, if the message says to change it too.
	then string
}

var remedies = []remedy{
	{message: "--privileged", file: "security: {privileged: true}", flags: []string{"--privileged"}},
	{message: "--seccomp-unconfined", file: "security: {seccomp_unconfined: true}", flags: []string{"--seccomp-unconfined"}},
	{message: "--allow-dangerous-mounts", file: "security: {allow_dangerous_mounts: true}", flags: []string{"--allow-dangerous-mounts"}},
	{message: "--writable-config", file: "security: {writable_config: true}", flags: []string{"--writable-config"}},
	{message: "--cap-add ", file: "security: {cap_add: [SYS_PTRACE]}", flags: []string{"--cap-add", "SYS_PTRACE"}},
	{message: "--device ", file: "security: {devices: [/dev/null]}", flags: []string{"--device", "/dev/null"}},
	{message: "--cap-add ", compose: "services: {a: {image: x, x-agbox: primary, cap_add: [SYS_PTRACE]}}", flags: []string{"--cap-add", "SYS_PTRACE"}},
	{message: "--device ", compose: "services: {a: {image: x, x-agbox: primary, devices: [\"/dev/null:/dev/null\"]}}", flags: []string{"--device", "/dev/null"}},
	{message: "--privileged", compose: "services: {a: {image: x, x-agbox: primary, privileged: true}}", flags: []string{"--privileged"}},
	{
		message: "describe the service by the flag --service", file: "services: [{name: s, image: x, security: {privileged: true}}]",
		flags: []string{"--service", "{name: s, image: x, security: {privileged: true}}"},
	},
	{message: "give the flag --publish ", file: "ports: [\"0.0.0.0:8080:80\"]", flags: []string{"--publish", "0.0.0.0:8080:80"}},
	{message: "give the flag --publish ", file: "ports: [\"[::]:80/udp\"]", flags: []string{"--publish", "[::]::80/udp"}},
	{message: "--mount %.200s:%.200s:rw", file: "mounts: [\"OUTSIDE:/data:rw\"]", flags: []string{"--mount", "OUTSIDE:/data:rw"}},
	{message: "--mount-workspace %.200s", file: "workspace: {source: OUTSIDE, mount: true}", flags: []string{"--mount-workspace", "OUTSIDE"}},
	{message: "Give the flag --build if you want it", file: "build: {context: OUTSIDE}", flags: []string{"--build", "OUTSIDE"}},
	{message: "give the flag --tool %s", file: "builtin_tools: [codex]", flags: []string{"--tool", "codex"}},
	{message: "give the flag --allow-dangerous-mounts", file: "mounts: [\"/etc:/host\"]", flags: []string{"--allow-dangerous-mounts"}},
	{message: "in it is a symbolic link, which cannot be protected", file: "workspace: {source: FOLDER/linked, mount: true}", flags: []string{"--writable-config"}},
	{message: "because this machine executes what is in it", file: "mounts: [\"FOLDER/.vscode:/x:rw\"]", flags: []string{"--writable-config"}},
	{message: "take it out of that file and give it by a flag, --compose or --devcontainer", file: "base: OUTSIDE/compose.yaml", flags: []string{"--compose", "OUTSIDE/compose.yaml"}, then: "user: root"},
	{message: "give --profile %[2]s", compose: "services: {a: {image: x, x-agbox: primary}, b: {image: x, profiles: [p]}}", flags: []string{"--profile", "p"}},
	{message: "name it with --compose-primary", compose: "services: {a: {image: x}}", flags: []string{"--compose-primary", "a"}},
	{message: "give one with --image", file: "user: root", flags: []string{"--image", "x"}},
	{message: "add --mount %[1]s:%[2]s", file: "workspace: {source: FOLDER/borrower, mount: true}", flags: []string{"--mount", "OUTSIDE/objects:OUTSIDE/objects"}},
}

// noRemedies are messages that name a flag or a command and promise nothing that can be
// checked here.
var noRemedies = map[string]string{
	"make the image with `agbox image build`":             "TestAnImageIsBuiltAndUsedByItsName",
	"build the image with `agbox image build`":            "the same",
	"run it with `agbox exec`":                            "it is about another time",
	"stop the sandbox with `agbox stop`":                  "it is about another time",
	"`agbox config validate` tells all":                   "more than ten problems, in TestEveryBadSpec",
	"more than %d repositories, submodules and worktrees": "daemon/hostfiles tests it: the flag is that of the other messages",
}

func TestEachRemedyThatAMessageNamesHelps(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Must(t, "daemon", "start")
	in.write(t, "home", map[string]string{".codex/auth.json": "{}", ".codex/config.toml": ""})
	env := append(os.Environ(), "AGBOX_HOME="+in.Home, "HOME="+filepath.Join(in.Home, "home"))
	for i, r := range remedies {
		t.Run(r.message, func(t *testing.T) {
			at := "r" + strconv.Itoa(i)
			outside := in.write(t, at+"/outside", map[string]string{"Dockerfile": "FROM x\n", "compose.yaml": "services: {a: {image: x, x-agbox: primary}}\n", "objects/info/x": ""})
			folder := in.write(t, at+"/folder", map[string]string{
				".vscode/tasks.json": "", "linked/x": "", "borrower/.git/HEAD": "ref: refs/heads/main\n", "borrower/.git/config": "", "borrower/.git/refs/x": "",
				"borrower/.git/objects/info/alternates": filepath.Join(outside, "objects") + "\n",
			})
			if err := os.Symlink(outside, filepath.Join(folder, "linked/.vscode")); err != nil {
				t.Fatal(err)
			}
			fill := strings.NewReplacer("FOLDER", folder, "OUTSIDE", outside).Replace
			args := []string{"config", "validate"}
			if r.compose != "" {
				in.write(t, at+"/folder", map[string]string{"compose.yaml": r.compose + "\n"})
				args = append(args, "--compose", filepath.Join(folder, "compose.yaml"))
			} else {
				text := fill(r.file) + "\n"
				if !strings.Contains(r.file, "build:") && !strings.Contains(r.file, "base:") && !strings.Contains(r.message, "--image") {
					text += "image: x\n"
				}
				in.write(t, at+"/folder", map[string]string{"agbox.yaml": text})
				args = append(args, "-f", filepath.Join(folder, "agbox.yaml"))
			}
			says := regexp.MustCompile(verb.ReplaceAllString(regexp.QuoteMeta(r.message), ".*"))
			before := in.from(t, folder, env, args...)
			if !says.MatchString(before.Stdout + before.Stderr) {
				t.Fatalf("without a flag it does not say %q:\n%s%s", says, before.Stdout, before.Stderr)
			}
			if r.then != "" {
				in.write(t, at+"/folder", map[string]string{"agbox.yaml": r.then + "\n"})
			}
			for _, flag := range r.flags {
				args = append(args, fill(flag))
			}
			if after := in.from(t, folder, env, args...); after.Code != 0 || says.MatchString(after.Stdout+after.Stderr) {
				t.Errorf("%s: %d, it still says\n%s%s", strings.Join(args, " "), after.Code, after.Stdout, after.Stderr)
			}
		})
	}
}

// verb is one of a format in a quoted regular expression. named is a flag or a command.
var verb = regexp.MustCompile(`%(\\\[\d\\\])?(\\\.\d+)?[sdq]`)

var named = regexp.MustCompile("--[a-z]|`agbox ")

func TestEveryMessageThatNamesAFlagIsAmongTheRemedies(t *testing.T) {
	var texts []string
	for _, r := range remedies {
		texts = append(texts, r.message)
	}
	for text := range noRemedies {
		texts = append(texts, text)
	}
	for _, dir := range []string{"../spec", "../daemon/admission", "../daemon/hostfiles", "../client/spec.go"} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() && path != dir {
				return fs.SkipDir
			}
			if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "devcontainerrunargs.go") {
				return nil
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING || !named.MatchString(lit.Value) {
					return true
				}
				text, err := strconv.Unquote(lit.Value)
				if err != nil {
					t.Error(err)
				}
				for _, known := range texts {
					if strings.Contains(text, known) || strings.HasPrefix(known, text) {
						return true
					}
				}
				t.Errorf("%s: no remedy is tried for %q", path, text)
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
