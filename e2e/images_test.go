package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestAnImageWithoutAShellRunsCommands(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageScratch, "--env", "FROM_CREATE=yes")
	in.Agbox(t, "exec", "demo", "--", "/probe", "args", "one", "two words", "", "*").Want(t, 0).WantOutput(t, "one\ntwo words\n\n*\n", "")
	in.Agbox(t, "exec", "demo", "--", "/probe", "stderr", "to stderr").Want(t, 0).WantOutput(t, "", "to stderr\n")
	in.Agbox(t, "exec", "demo", "--", "/probe", "exit", "9").Want(t, 9)
	in.Agbox(t, "exec", "demo", "--", "/probe", "cwd").Want(t, 0).WantOutput(t, "/\n", "")
	in.Agbox(t, "exec", "-u", "1234:5678", "demo", "--", "/probe", "uid").Want(t, 0).WantOutput(t, "1234\n", "")
	in.Agbox(t, "exec", "-u", "1234:5678", "demo", "--", "/probe", "gid").Want(t, 0).WantOutput(t, "5678\n", "")
	// Standard input exists and is empty.
	in.Agbox(t, "exec", "demo", "--", "/probe", "cat").Want(t, 0).WantOutput(t, "", "")
	env := in.Must(t, "exec", "-e", "FROM_EXEC=yes", "demo", "--", "/probe", "env")
	for _, want := range []string{"FROM_CREATE=yes", "FROM_EXEC=yes", "HOME=/", "PATH=/"} {
		if !strings.Contains(env, want) {
			t.Errorf("the environment lacks %s:\n%s", want, env)
		}
	}
	refused(t, in.Agbox(t, "exec", "demo", "--", "sh"), 127, "sh")
	job := in.Must(t, "exec", "-d", "demo", "--", "/probe", "lines", "3")
	in.Agbox(t, "logs", "-f", job).Want(t, 0).WantOutput(t, "1\n2\n3\n", "")
}

func TestTheImagesOwnCommandRuns(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageEntrypoint)
	harness.Eventually(t, "the entrypoint has run", func() bool {
		return in.Agbox(t, "exec", "demo", "--", "cat", "/tmp/entrypoint.txt").Stdout == "from-cmd\ntwo words\n"
	})
	in.Create(t, "given", harness.ImageEntrypoint, "--", "of the caller")
	harness.Eventually(t, "the entrypoint has run with the command of the request", func() bool {
		return in.Agbox(t, "exec", "given", "--", "cat", "/tmp/entrypoint.txt").Stdout == "of the caller\n"
	})
	in.Create(t, "own", harness.ImageEntrypoint, "--entrypoint", "", "--", "sh", "-c", "echo own >/tmp/own.txt; exec sleep 1000")
	harness.Eventually(t, "the command of the request has run", func() bool {
		return in.Agbox(t, "exec", "own", "--", "cat", "/tmp/own.txt").Stdout == "own\n"
	})
	in.Agbox(t, "exec", "own", "--", "ls", "/tmp/entrypoint.txt").Want(t, 1)
}

func TestUserDirectoryAndEnvironmentComeFromTheImageUnlessGiven(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageUser)
	in.Create(t, "given", harness.ImageUser, "--env", "IMAGE_ENV=from-create")
	const show = `echo "$(id -un) $(id -u):$(id -g) $HOME $PWD $IMAGE_ENV"`
	for _, c := range []struct {
		flags []string
		box   string
		want  string
	}{
		{nil, "demo", "agent 1000:1000 /home/agent /workdir from-image"},
		{[]string{"-u", "root"}, "demo", "root 0:0 /root /workdir from-image"},
		{[]string{"-u", "0"}, "demo", "root 0:0 /root /workdir from-image"},
		{[]string{"-u", "nobody:agent"}, "demo", "nobody 65534:1000 / /workdir from-image"},
		{[]string{"-w", "/tmp"}, "demo", "agent 1000:1000 /home/agent /tmp from-image"},
		{[]string{"-e", "IMAGE_ENV=from-exec"}, "demo", "agent 1000:1000 /home/agent /workdir from-exec"},
		{[]string{"-e", "HOME=/elsewhere"}, "demo", "agent 1000:1000 /elsewhere /workdir from-image"},
		{nil, "given", "agent 1000:1000 /home/agent /workdir from-create"},
		{[]string{"-e", "IMAGE_ENV=from-exec"}, "given", "agent 1000:1000 /home/agent /workdir from-exec"},
	} {
		args := append(append([]string{"exec"}, c.flags...), c.box, "--", "sh", "-c", show)
		in.Agbox(t, args...).Want(t, 0).WantOutput(t, c.want+"\n", "")
	}
	// Files in a sandbox have the same owner as in the image.
	in.Agbox(t, "exec", "demo", "--", "sh", "-c", "echo mine >~/file && cat ~/file").Want(t, 0).WantOutput(t, "mine\n", "")
}

func TestADistributionRunsWithAllItsTools(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageDebian)
	in.Agbox(t, "exec", "demo", "--", "bash", "-c", `echo "${BASH_VERSION:+bash} $LANG"; id -un`).Want(t, 0).WantOutput(t, "bash C.UTF-8\nroot\n", "")
	in.Agbox(t, "exec", "-u", "agent", "demo", "--", "bash", "-c", "cd && pwd").Want(t, 0).WantOutput(t, "/home/agent\n", "")

	// Packages can be installed: their scripts have the rights that they need.
	in.Agbox(t, "exec", "demo", "--", "bash", "-ec",
		"cd /tmp; touch f; chown agent:agent f; chmod 4755 f; install -o agent -m 640 f g; su nobody -s /bin/sh -c 'id -un'").
		Want(t, 0).WantOutput(t, "nobody\n", "")

	tree := in.Start(t, "exec", "demo", "--", "bash", "-c", "echo $$; sleep 1001 & sleep 1001 & wait")
	tree.AwaitOutput(t, "\n")
	shown := func() string { return in.Must(t, "exec", "demo", "--", "ps", "-eo", "ppid,pid,args") }
	parent := strings.TrimSpace(tree.Stdout.String())
	children := regexp.MustCompile(`(?m)^ *` + parent + ` +\d+ sleep 1001$`)
	harness.Eventually(t, "ps shows both children", func() bool { return len(children.FindAllString(shown(), -1)) == 2 })
	if !regexp.MustCompile(`(?m)^ *0 +1 /\.agbox/init`).MatchString(shown()) {
		t.Errorf("the supervisor is not PID 1:\n%s", shown())
	}
	in.Must(t, "kill", in.execs(t)[0].GetExecId())
	tree.Wait(t).Want(t, 143)
	harness.Eventually(t, "the whole tree is gone", func() bool { return !strings.Contains(shown(), "sleep 1001") })
}

func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageDebian)
	// Its parent ends at once, so the supervisor becomes its parent.
	in.Agbox(t, "exec", "demo", "--", "bash", "-c", "(setsid sleep 1002 >/dev/null 2>&1 &)").Want(t, 0)
	processes := func() string { return in.Must(t, "exec", "demo", "--", "ps", "-eo", "ppid,stat,args") }
	orphan := regexp.MustCompile(`(?m)^ *1 +\S+ +sleep 1002$`)
	harness.Eventually(t, "there is an orphan of PID 1", func() bool { return orphan.MatchString(processes()) })
	in.Must(t, "exec", "demo", "--", "pkill", "-f", "sleep 1002")
	zombie := regexp.MustCompile(`(?m)^ *\d+ +Z`)
	harness.Eventually(t, "the orphan is gone and nothing is a zombie", func() bool {
		all := processes()
		return !strings.Contains(all, "sleep 1002") && !zombie.MatchString(all)
	})
	for range 5 {
		in.Must(t, "exec", "demo", "--", "bash", "-c", "for i in $(seq 20); do (setsid true &); done")
	}
	harness.Eventually(t, "a hundred orphans are reaped", func() bool { return !zombie.MatchString(processes()) })
}
