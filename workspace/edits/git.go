package edits

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/workspace/gitignore"
)

// ErrNoGit is the error if git is needed and this machine has none.
var ErrNoGit = errors.New("this machine has no git, which is needed here: install it (Debian: apt-get install git)")

// git runs git: this type is the only place that does, always with the same settings (fixed,
// fixedEnv). Nothing is fetched, also no object that a repository says another one has, and no
// hook, monitor, credential helper or pager runs. Variables of the caller's git do not count, except
// identity.
type git struct {
	ctx context.Context
	// dir is the working directory, and gitDir the repository; empty means the one around dir.
	dir, gitDir string
	env         []string
	// ownConfig lets the user's and the system's configuration apply. That steers what many
	// commands print, so it is only for those whose output nobody parses, and in the target.
	ownConfig bool
	// bounded limits memory, time and the size of files: for objects of a sandbox. memory is a
	// lower limit of memory in bytes, if it is not 0.
	bounded bool
	memory  uint64
	// limited limits the output that run returns: for what depends on commits of a sandbox.
	limited bool
}

// bounds are the limits of a bounded git: bytes of address space and of a file, and seconds.
var bounds = map[int]uint64{unix.RLIMIT_AS: 8 << 30, unix.RLIMIT_FSIZE: 4 << 30, unix.RLIMIT_CPU: 600}

// fixed are settings that no file changes.
var fixed = []string{
	"core.hooksPath=/dev/null", "core.fsmonitor=false", "core.askPass=", "core.sshCommand=false", "core.alternateRefsCommand=", "core.pager=cat",
	"credential.helper=", "diff.external=", "protocol.allow=never", "submodule.recurse=false", "gc.auto=0", "maintenance.auto=false",
	"core.quotePath=true", "core.safecrlf=false", "advice.graftFileDeprecated=false",
}

// fixedEnv is the same as variables. GIT_ALLOW_PROTOCOL overrides each setting of protocols, so
// a git without GIT_NO_LAZY_FETCH fetches nothing either.
var fixedEnv = []string{
	"LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_NO_REPLACE_OBJECTS=1", "GIT_GRAFT_FILE=/dev/null", "GIT_ATTR_NOSYSTEM=1", "GIT_OPTIONAL_LOCKS=0",
	"GIT_NO_LAZY_FETCH=1", "GIT_ALLOW_PROTOCOL=none",
}

// identity are the variables of the caller's git that count: they name author and committer.
var identity = []string{"GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"}

// asUser is the same git with the user's configuration, which programs behind filters read.
func (g *git) asUser() *git {
	with := *g
	with.ownConfig = true
	return &with
}

// scratchRepository makes a bare repository in a folder.
func scratchRepository(ctx context.Context, dir string, flags ...string) (*git, error) {
	g := &git{ctx: ctx, dir: dir, gitDir: filepath.Join(dir, "repository")}
	_, err := g.run(nil, append(append([]string{"init", "-q", "--bare", "--template="}, flags...), g.gitDir)...)
	return g, err
}

// maxOutput and maxPaths are the limits of a limited output: bytes, and paths of a list. Tests set
// maxPaths.
const maxOutput = 128 << 20

var maxPaths = 1_000_000

// excess is the error for more than agbox reads of commits of a sandbox.
type excess struct{ what string }

// Error says of what there is too much.
func (e *excess) Error() string { return e.what }

var errTooManyPaths = &excess{fmt.Sprintf("they have more than %d paths, or more than %d MiB of them", maxPaths, maxOutput>>20)}

// output is what git prints.
type output struct {
	text    bytes.Buffer
	limited bool
	// paths is the number of zero bytes, with which lists end their paths, and full is set
	// beyond a limit.
	paths int
	full  bool
}

// Write fails beyond a limit, which ends git.
func (o *output) Write(p []byte) (int, error) {
	o.paths += bytes.Count(p, []byte{0})
	if o.limited && (o.text.Len()+len(p) > maxOutput || o.paths > maxPaths) {
		o.full = true
		return 0, errTooManyPaths
	}
	return o.text.Write(p)
}

// run runs git with an input, and returns its output.
func (g *git) run(stdin io.Reader, args ...string) ([]byte, error) {
	out := output{limited: g.limited}
	err := g.pipe(stdin, &out, args...)
	if out.full {
		return nil, errTooManyPaths
	}
	return out.text.Bytes(), err
}

// command prepares to run git.
func (g *git) command(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(g.ctx, "git")
	for _, one := range fixed {
		cmd.Args = append(cmd.Args, "-c", one)
	}
	cmd.Args = append(cmd.Args, args...)
	cmd.Dir = g.dir
	for _, v := range os.Environ() {
		if slices.ContainsFunc(identity, func(name string) bool { return strings.HasPrefix(v, name+"=") }) || !strings.HasPrefix(v, "GIT_") && !strings.HasPrefix(v, "LC_") && !strings.HasPrefix(v, "LANG") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, fixedEnv...)
	if g.gitDir != "" {
		cmd.Env = append(cmd.Env, "GIT_DIR="+g.gitDir)
	}
	if !g.ownConfig {
		cmd.Env = append(cmd.Env, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null")
	}
	cmd.Env = append(cmd.Env, g.env...)
	return cmd
}

// together does all at once, such as to run several gits: most of their time is their start. It
// returns the first error in the order of the list.
func together(all ...func() error) error {
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, one := range all {
		running.Go(func() { errs[i] = one() })
	}
	running.Wait()
	return cmp.Or(errs...)
}

// started starts git.
func started(cmd *exec.Cmd) error {
	err := cmd.Start()
	if errors.Is(err, exec.ErrNotFound) {
		return ErrNoGit
	}
	return err
}

func (g *git) pipe(stdin io.Reader, stdout io.Writer, args ...string) error {
	cmd := g.command(args...)
	cmd.Stdin, cmd.Stdout = stdin, stdout
	var said bytes.Buffer
	cmd.Stderr = &said
	err := started(cmd)
	if err == nil {
		err = errors.Join(g.bound(cmd.Process.Pid), cmd.Wait())
	}
	var exit *exec.ExitError
	switch {
	case g.ctx.Err() != nil:
		return g.ctx.Err()
	case errors.As(err, &exit) && endedBy(exit, syscall.SIGPIPE):
		return brokenPipe(stdout)
	case errors.As(err, &exit):
		return &gitError{args[0], strings.TrimSpace(said.String()), exit}
	}
	return err
}

func endedBy(exit *exec.ExitError, sig syscall.Signal) bool {
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == sig
}

// brokenPipe is the error of a write of our own to stdout, whose reader is gone.
func brokenPipe(stdout io.Writer) error {
	name := "pipe"
	if f, ok := stdout.(*os.File); ok {
		name = f.Name()
	}
	return &fs.PathError{Op: "write", Path: name, Err: syscall.EPIPE}
}

// bound limits a git that has just started.
func (g *git) bound(pid int) error {
	if !g.bounded {
		return nil
	}
	limits := maps.Clone(bounds)
	if g.memory > 0 {
		limits[unix.RLIMIT_DATA] = g.memory
	}
	for what, most := range limits {
		err := unix.Prlimit(pid, what, &unix.Rlimit{Cur: most, Max: most}, nil)
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended
			return fmt.Errorf("limit git: %w", err)
		}
	}
	return nil
}

// gitError is a failure of git.
type gitError struct {
	command, said string
	exit          *exec.ExitError
}

// Error returns what git printed.
func (e *gitError) Error() string {
	return fmt.Sprintf("git %s failed (%v): %s", e.command, e.exit, e.said)
}

// Unwrap returns how it ended.
func (e *gitError) Unwrap() error { return e.exit }

// status is the exit code in an error of git, -1 if a signal has ended it, and 0 for other errors.
func status(err error) int {
	if exit := new(exec.ExitError); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// refused returns the paths of one side of changes that git takes into no tree: it leaves them out,
// and is content. It refuses names, and links of some more, such as .gitmodules: only git knows
// these. object is the name of any object.
func (g *git) refused(changes []Change, of side, object string) (map[string]bool, error) {
	refused := make(map[string]bool)
	var list strings.Builder
	for i := range changes {
		name, f, _ := of(&changes[i])
		if f == nil || !f.Link && !gitignore.Inside(name) {
			continue
		}
		if refused[name] = true; f.Link && usable(name) {
			fmt.Fprintf(&list, "%s %s 0\t%s\x00", f.Mode(), object, name)
		}
	}
	if list.Len() == 0 {
		return refused, nil
	}
	index := filepath.Join(g.dir, "refused.index")
	if err := os.RemoveAll(index); err != nil {
		return nil, err
	}
	with := *g
	with.env = append(slices.Clone(with.env), "GIT_INDEX_FILE="+index)
	if _, err := with.run(strings.NewReader(list.String()), "update-index", "-z", "--index-info"); err != nil {
		return nil, err
	}
	out, err := with.run(nil, "ls-files", "-z")
	for name := range strings.SplitSeq(string(out), "\x00") {
		delete(refused, name)
	}
	return refused, err
}

// blobs stores files in the repository, and returns the name of each object.
func (g *git) blobs(names []string) ([]string, error) {
	if len(names) == 0 {
		return nil, nil
	}
	out, err := g.run(strings.NewReader(strings.Join(names, "\n")+"\n"), "hash-object", "-w", "--no-filters", "--stdin-paths")
	if err != nil {
		return nil, err
	}
	objects := strings.Fields(string(out))
	if len(objects) != len(names) {
		return nil, fmt.Errorf("git hash-object named %d objects of %d", len(objects), len(names))
	}
	return objects, nil
}

// HistoryError is the error for commits that cannot be brought as they are.
type HistoryError struct{ Err error }

// Error says why.
func (e *HistoryError) Error() string {
	return fmt.Sprintf("the commits of the sandbox cannot be brought as they are (%v): --squash makes one commit of its files", e.Err)
}

// Unwrap returns the cause.
func (e *HistoryError) Unwrap() error { return e.Err }
