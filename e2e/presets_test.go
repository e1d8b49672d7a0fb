package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
	"github.com/agbox/agbox/internal/ids"
)

// standIns are programs of Debian that the Dockerfile of the presets uses, for an image
// that has only busybox. npm installs an agent that shows what it can read.
var standIns = map[string]string{
	"apt-get": "#!/bin/sh\n",
	"getent":  "#!/bin/sh\ngrep \":x:$2:\" /etc/passwd\n",
	"userdel": "#!/bin/sh\nsed -i \"/^$1:/d\" /etc/passwd\n",
	"useradd": "#!/bin/sh\necho \"agent:x:$2:$2::/home/agent:/bin/sh\" >>/etc/passwd; mkdir -p /home/agent; chown $2:$2 /home/agent\n",
	"npm": `#!/bin/sh
for word; do case $word in --prefix) ;; /*) prefix=$word ;; @anthropic*) package=$word ;; esac; done
mkdir -p $prefix/bin
[ -n "$package" ] || exit 0
cat >$prefix/bin/claude <<'END'
#!/bin/sh
[ "$1" != --version ] || exit 0
echo "args: $*"
echo "user: $(id -u), owner: $(stat -c %u a)"
head -c 12 ~/.claude/settings.json
word=BAI
for folder in /* /.agbox/tools; do
  case $folder in /proc|/sys|/dev) ;; *) find $folder -type f -exec grep -l ${word}T {} + 2>/dev/null ;; esac
done | sort
env | grep ${word}T
[ ! -S "$SSH_AUTH_SOCK" ] || echo "agent of SSH: $SSH_AUTH_SOCK"
echo changed >a
exit 7
END
chmod +x $prefix/bin/claude
`,
}

// bait is a home with credentials. Those of other programs must not reach an agent.
func bait(in *install, t *testing.T) string {
	files := map[string]string{}
	for _, name := range []string{
		".claude/.credentials.json", ".claude/settings.json", ".claude.json", ".codex/auth.json", ".gitconfig", ".config/gh/hosts.yml",
		".ssh/id_ed25519", ".ssh/known_hosts", ".aws/credentials", ".netrc", ".npmrc", ".docker/config.json", ".gnupg/secring.gpg", ".kube/config",
	} {
		files[name] = "# BAIT " + name + "\n"
	}
	return in.write(t, "people/me", files)
}

func TestAPresetsImageIsBuiltOnceAndGetsOnlyWhatIsNamed(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	base := "agbox-test/presetbase-" + strings.ToLower(ids.New()) + ":1"
	files := map[string]string{"base/Dockerfile": "FROM " + harness.ImageBusybox + "\nCOPY bin/ /bin/\nRUN cd /bin && chmod +x apt-get getent userdel useradd npm\n"}
	for name, text := range standIns {
		files["base/bin/"+name] = text
	}
	folder := in.write(t, "images", files)
	in.from(t, "/", nil, "image", "build", "-t", base, filepath.Join(folder, "base")).Want(t, 0)
	in.RemoveImage(base)
	home := bait(in, t)
	dir := in.write(t, "project", map[string]string{"a": "one\n"})
	env := []string{"HOME=" + home, "AGBOX_PRESET_BASE=" + base, "AWS_SECRET_ACCESS_KEY=BAIT", "GH_TOKEN=BAIT"}

	first := in.from(t, dir, env, "claude", "--name", "kept", "--", "-p", "hello").Want(t, 7)
	name := ""
	for word := range strings.FieldsSeq(first.Stderr) {
		if strings.HasPrefix(word, "agbox/preset-claude:") {
			name = strings.TrimSuffix(word, ",")
		}
	}
	if name == "" {
		t.Fatalf("it is not said that an image is built:\n%s", first.Stderr)
	}
	in.RemoveImage(name)
	harness.WantSame(t, "what the agent sees", first.Stdout,
		"args: --dangerously-skip-permissions -p hello\nuser: 1000, owner: 1000\n{\"permission/home/agent/.claude/.credentials.json\n")
	if !strings.Contains(first.Stderr, "claude gets a copy of "+dir+", login of Claude Code.\n") {
		t.Errorf("what is handed over is not said:\n%s", first.Stderr)
	}
	if !strings.Contains(first.Stderr, "` shows what it changed, `agbox apply ") {
		t.Errorf("how to get at the work is not said:\n%s", first.Stderr)
	}
	if strings.Contains(first.Stderr, "cannot be brought in") {
		t.Errorf("it says what is missing:\n%s", first.Stderr)
	}
	wantFile(t, filepath.Join(dir, "a"), "one\n")
	harness.WantSame(t, "the work", in.inside(t, "kept", "cat a"), "changed\n")

	second := in.from(t, dir, append(env, "ANTHROPIC_API_KEY=BAIT, and 20 characters more"), "claude", "--rm", "--ask", "--with", "git", "--verbose", "--", "-p", "hello").Want(t, 7)
	harness.WantSame(t, "what the agent sees with more", second.Stdout,
		"args: -p hello\nuser: 1000, owner: 1000\n/etc/gitconfig\n/etc/ssh/ssh_known_hosts\n/home/agent/.claude/.credentials.json\nANTHROPIC_API_KEY=***\n")
	if strings.Contains(second.Stderr, "Building") || !strings.Contains(second.Stderr, "settings of Git, known hosts of SSH, variable ANTHROPIC_API_KEY.") || !strings.Contains(second.Stderr, "instructions for Claude Code cannot") {
		t.Errorf("the second run says\n%s", second.Stderr)
	}
	if list := in.from(t, "/", env, "preset", "ls").Want(t, 0).Stdout; !strings.Contains(list, "2.1.330   built       "+name) {
		t.Errorf("preset ls shows\n%s", list)
	}
	getsExactly(t, in, dir, env)
	refused(t, in.from(t, dir, env, "claude", "--with", "ssh-agent"), 125, "--with ssh-agent: The SSH agent cannot be brought in")
	refused(t, in.from(t, dir, env, "claude", "--with", "keys"), 125, `--with "keys" is not git, gh, ssh-agent or none.`)

	// On a terminal one is asked once. What belongs to root, only root can use.
	asked := in.OnTerminalIn(t, dir, env, "claude", "--rm")
	for range 2 {
		asked.Await("[y/N] ")
		asked.Types("y\n")
		asked.Await("Hand over gh")
	}
	asked.Await("user: 0, owner: 0")
	asked.Await("/.agbox/tools/gh/hosts.yml")
	if code := asked.Wait(); code != 7 {
		t.Errorf("on a terminal: %d, %s", code, asked.Screen())
	}
	again := in.from(t, dir, env, "claude", "--rm").Want(t, 7)
	if !strings.Contains(again.Stdout, "/etc/gitconfig\n") || !strings.Contains(again.Stdout, "tools/gh/hosts.yml\n") {
		t.Errorf("the answer is not remembered:\n%s", again.Stdout)
	}

	// A folder that is mounted keeps its owner.
	if err := os.Chown(dir, 1234, 1234); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "a"), 1234, 1234); err != nil {
		t.Fatal(err)
	}
	mounted := in.from(t, dir, env, "claude", "--rm", "--with", "none", "--mount-workspace", ".").Want(t, 7)
	for word := range strings.FieldsSeq(mounted.Stderr) {
		if strings.HasPrefix(word, "agbox/preset-claude:") {
			in.RemoveImage(strings.TrimSuffix(word, ","))
		}
	}
	if !strings.Contains(mounted.Stdout, "user: 1234, owner: 1234\n") {
		t.Errorf("in a mounted folder:\n%s", mounted.Stdout)
	}
	wantFile(t, filepath.Join(dir, "a"), "changed\n")
}

// getsExactly runs the agent with some of what --with names. It sees that of the host's
// credentials, its own login, and nothing else.
func getsExactly(t *testing.T, in *install, dir string, env []string) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	for _, row := range []struct{ with, want string }{
		{"gh", "/.agbox/tools/gh/hosts.yml\n/root/.claude/.credentials.json\n"},
		{"ssh-agent", "/root/.claude/.credentials.json\nagent of SSH: /.agbox/tools/ssh-agent.sock\n"},
		{"git,gh,ssh-agent", "/.agbox/tools/gh/hosts.yml\n/etc/gitconfig\n/etc/ssh/ssh_known_hosts\n/root/.claude/.credentials.json\nagent of SSH: /.agbox/tools/ssh-agent.sock\n"},
	} {
		r := in.from(t, dir, append(env, "SSH_AUTH_SOCK="+socket), "claude", "--rm", "--with", row.with, "--", "-p", "hello").Want(t, 7)
		_, seen, _ := strings.Cut(r.Stdout, "{\"permission")
		harness.WantSame(t, "what the agent sees with "+row.with, seen, row.want)
	}
}
