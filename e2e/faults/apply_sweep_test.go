package faults

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// files are the files of a folder by path. A link begins with "l:", an executable with "x:".
type files map[string]string

// filesIn reads a folder.
func filesIn(t *testing.T, dir string) files {
	t.Helper()
	all := make(files)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		path, _ := filepath.Rel(dir, name)
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return nil
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(name)
			all[path] = "l:" + to
			return err
		}
		content, err := os.ReadFile(name)
		info, statErr := d.Info()
		if all[path] = string(content); statErr == nil && info.Mode()&0o100 != 0 {
			all[path] = "x:" + string(content)
		}
		return errors.Join(err, statErr)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// differs says where two folders differ; "" is nowhere.
func (f files) differs(want files) string {
	for path := range want {
		if f[path] != want[path] {
			return fmt.Sprintf("%s is %q, want %q", path, f[path], want[path])
		}
	}
	for path := range f {
		if _, ok := want[path]; !ok {
			return fmt.Sprintf("%s is %q, want no such file", path, f[path])
		}
	}
	return ""
}

// rivals is a folder that a sandbox and its user change at the same time, in rounds.
type rivals struct {
	w   *witness
	dir string
	// outside is a file that a link in the folder leads to in every other round.
	outside string
	// round is the number of the changes, from 0: as it was copied.
	round int
}

func newRivals(t *testing.T) *rivals {
	t.Helper()
	w := newWitness(t, harness.New(t))
	r := &rivals{w: w, dir: filepath.Join(w.in.Home, "project"), outside: filepath.Join(w.in.Home, "outside")}
	if err := os.WriteFile(r.outside, []byte("outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, content := range r.after() {
		name := filepath.Join(r.dir, path)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		if to, link := strings.CutPrefix(content, "l:"); link {
			err = errors.Join(err, os.Symlink(to, name))
		} else {
			err = errors.Join(err, os.WriteFile(name, []byte(content), 0o644))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r.w.box(t, "demo", "--workspace", r.dir)
	return r
}

// after is the folder when the work of the round was applied.
func (r *rivals) after() files {
	n := r.round
	f := files{
		"a": fmt.Sprintf("theirs %d\n2\n3\n4\n5\nours %d\n", n, n), "bin": fmt.Sprintf("\x00%d", n), "x": "x\n", "l": fmt.Sprintf("l:t%d", n),
		"c":                            fmt.Sprintf("<<<<<<< folder\ntheirs %d\nours %d\n=======\ntheirs %d\n>>>>>>> sandbox demo\n", n-1, n, n),
		fmt.Sprintf("r%d", n):          "this file is renamed in each round\n",
		fmt.Sprintf("d%d/e/f%d", n, n): fmt.Sprintf("deep %d\n", n), "kept": "of the user\n",
	}
	if n == 0 {
		f["c"] = "both\n"
	}
	f["out"] = "l:" + r.outside
	if n%2 == 1 {
		f["x"], f["out"] = "x:x\n", fmt.Sprintf("instead of a link %d\n", n)
	}
	return f
}

// change makes the changes of the next round on both sides, and returns the folder then.
func (r *rivals) change(t *testing.T) files {
	t.Helper()
	r.round++
	n := r.round
	for path, content := range map[string]string{
		"a": fmt.Sprintf("theirs %d\n2\n3\n4\n5\nours %d\n", n-1, n), "c": fmt.Sprintf("theirs %d\nours %d\n", n-1, n),
	} {
		if err := os.WriteFile(filepath.Join(r.dir, path), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r.w.in.Must(t, "exec", "demo", "--", "sh", "-ec", fmt.Sprintf(`cd /workspace; n=%d; m=%d
sed -i "1s/.*/theirs $n/" a; echo "theirs $n" > c; mv r$m r$n; ln -sfn t$n l; printf "\\000$n" > bin
rm -r d$m; mkdir -p d$n/e; echo deep $n > d$n/e/f$n; rm out
if [ $((n %% 2)) = 1 ]; then chmod +x x; echo instead of a link $n > out; else chmod -x x; ln -s %s out; fi`, n, n-1, r.outside))
	return filesIn(t, r.dir)
}

// kept lists what agbox keeps about folders that it brings work to.
func (r *rivals) kept(t *testing.T, pattern string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(r.w.in.Home, "data/folders", pattern))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// applyUnder runs agbox apply, which ends with the code, and kills it before its n-th change of
// files. It returns the change, "" if it ended before.
func applyUnder(t *testing.T, w *witness, n, code int, args ...string) (before string) {
	t.Helper()
	ctx, cancel := context.WithCancel(harness.Bounded(t))
	defer cancel()
	cmd := w.in.Command(ctx, "agbox", append([]string{"apply", "demo"}, args...)...)
	// It is traced before it begins.
	cmd.Args = append([]string{"sh", "-c", `read go && exec "$@"`, "sh", cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir()) // a killed process leaves its files there
	begin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	cmd.Stdout, cmd.Stderr = &shown, &shown
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tr := traceAndKill(t, cmd.Process.Pid, n, w.in.Home)
	if _, err := begin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	before = tr.killed()
	err = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); before == "" && status.ExitStatus() != code || before != "" && status.Signal() != unix.SIGKILL {
		t.Fatalf("killed before %q, agbox apply ended with %v: %s", before, err, &shown)
	}
	return before
}

// A process that is killed cannot say anything. What its user has then is a folder as it
// was, or one that the next agbox apply completes and says so.
func TestKillAtManyBoundariesOfAnApply(t *testing.T) {
	t.Parallel()
	row := Row(t, 61, "SIGKILL of \"agbox apply\" at changes of the folder", 0)
	r := newRivals(t)
	seen := make(map[string]int)
	first, step := shareOf(t, operation{name: "apply", step: 12})
	for n := first; ; n += step {
		if n > mostBoundaries {
			t.Fatalf("agbox apply makes more than %d changes", mostBoundaries)
		}
		ours := r.change(t)
		before := applyUnder(t, r.w, n, 1)
		if before != "" {
			seen[before]++
			r.survived(t, fmt.Sprintf("killed at boundary %d, before %s", n, before), ours)
		}
		if wrong := filesIn(t, r.dir).differs(r.after()); wrong != "" {
			t.Fatalf("killed at boundary %d, before %q: in the end %s", n, before, wrong)
		}
		if text, err := os.ReadFile(r.outside); err != nil || string(text) != "outside\n" {
			t.Errorf("killed at boundary %d, before %q: the file outside is %q: %v", n, before, text, err)
		}
		if left := r.kept(t, "*/*"); len(left) != 1 || !strings.HasPrefix(filepath.Base(left[0]), "pending-") {
			t.Errorf("killed at boundary %d, before %q: %s is left", n, before, left)
		}
		// The conflict stays until the user resolves it, which is in the next round.
		if left := r.w.in.Must(t, "diff", "demo", "--name-only"); left != "c" {
			t.Errorf("killed at boundary %d, before %q: %s counts as changed", n, before, left)
		}
		if before == "" {
			break
		}
	}
	kills := 0
	for _, times := range seen {
		kills += times
	}
	row.Ran(kills)
	row.Note("apply: before %s", counted(seen))
	r.w.check(t)
}

// survived checks the folder after a kill, and that the next agbox apply completes the work.
func (r *rivals) survived(t *testing.T, when string, ours files) {
	t.Helper()
	now, theirs := filesIn(t, r.dir), r.after()
	journal := len(r.kept(t, "*/stage/journal")) > 0
	untouched, complete := now.differs(ours), now.differs(theirs)
	if !journal && untouched != "" && complete != "" {
		t.Fatalf("%s: without a journal the folder is neither as before (%s) nor complete (%s)", when, untouched, complete)
	}
	for path, content := range now {
		if content != ours[path] && content != theirs[path] {
			t.Fatalf("%s: %s is %q, which is neither of before nor of after", when, path, content)
		}
	}
	next := r.w.in.Agbox(t, "apply", "demo")
	said := strings.Contains(next.Stderr, "An earlier `agbox apply` or `agbox pull` did not end. Its work is complete now.")
	if said != journal {
		t.Errorf("%s: the next apply says %q (journal: %v)", when, next.Stderr, journal)
	}
	if strings.Count(next.Stdout, "U c  (conflict") != 1 || next.Code != 1 {
		t.Errorf("%s: the next apply ended with %d and shows %q", when, next.Code, next.Stdout)
	}
}

// The next apply to the folder ends that work, whatever it brings itself.
func TestAnApplyThatWasKilledEndsAlthoughItsSandboxIsGone(t *testing.T) {
	t.Parallel()
	row := Row(t, 61, "SIGKILL of \"agbox apply\", then the removal of its sandbox", 1)
	r := newRivals(t)
	r.change(t)
	for n := 1; len(r.kept(t, "*/stage/journal")) == 0; n += 8 {
		if applyUnder(t, r.w, n, 1) == "" {
			t.Fatal("no kill leaves a journal")
		}
	}
	row.Ran(1)
	demo := r.w.in.SandboxID(t, "demo")
	r.w.in.Must(t, "rm", "--wait", "-f", demo)
	r.w.holds(demo, agboxv1.SandboxState_SANDBOX_STATE_DELETED)
	r.w.box(t, "other", "--workspace", r.dir)
	next := r.w.in.Agbox(t, "apply", "other")
	if next.Code != 1 || !strings.Contains(next.Stderr, "Its work is complete now.") {
		t.Errorf("the next apply ended with %d: %s%s", next.Code, next.Stdout, next.Stderr)
	}
	if where := filesIn(t, r.dir).differs(r.after()); where != "" {
		t.Errorf("the folder is not complete: %s", where)
	}
	if left := r.kept(t, "*"); len(left) > 0 {
		t.Errorf("%s is left", left)
	}
	r.w.check(t)
}

// What the branch has is brought, also if the process is killed then: what the user removes there
// does not come back. What it does not have is still to be brought.
func TestKillAtManyBoundariesOfABranch(t *testing.T) {
	t.Parallel()
	row := Row(t, 74, "SIGKILL of \"agbox apply --branch\" at changes of its files", 0)
	w := newWitness(t, harness.New(t))
	dir := t.TempDir()
	git := func(args ...string) (string, error) {
		out, err := exec.CommandContext(harness.Bounded(t), "git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		return string(out), err
	}
	must := func(args ...string) {
		t.Helper()
		if out, err := git(args...); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	must("init", "-q", "-b", "main")
	must("config", "user.name", "x")
	must("config", "user.email", "x@x.test")
	must("commit", "-q", "--allow-empty", "-m", "first")
	w.box(t, "demo", "--workspace", dir)
	has := func(file string) bool {
		_, err := git("cat-file", "-e", "fix:"+file)
		return err == nil
	}
	seen, kills := make(map[string]int), 0
	first, step := shareOf(t, operation{name: "branch", step: 12})
	for n, before := first, "none"; before != ""; n += step {
		if n > mostBoundaries {
			t.Fatalf("agbox apply --branch makes more than %d changes", mostBoundaries)
		}
		file := fmt.Sprintf("w%d", n)
		w.in.Must(t, "exec", "demo", "--", "sh", "-c", "echo work > /workspace/"+file)
		if before = applyUnder(t, w, n, 0, "--branch", "fix"); before != "" {
			seen[before]++
			kills++
		}
		brought, pending := has(file), w.in.Must(t, "diff", "demo", "--name-only")
		if want := map[bool]string{false: file}[brought]; pending != want {
			t.Errorf("killed at boundary %d, before %q: %q is to be brought, want %q", n, before, pending, want)
		}
		if brought { // the user does not want it
			must("checkout", "-q", "fix")
			must("rm", "-q", file)
			must("commit", "-q", "-m", "without "+file)
			must("checkout", "-q", "main")
		}
		w.in.Must(t, "apply", "demo", "--branch", "fix")
		if has(file) == brought {
			t.Errorf("killed at boundary %d, before %q: the branch had the file: %v, and has it at the end: %v", n, before, brought, !brought)
		}
		if left := w.in.Must(t, "diff", "demo", "--name-only"); left != "" {
			t.Errorf("killed at boundary %d, before %q: %s counts as changed", n, before, left)
		}
	}
	row.Ran(kills)
	row.Note("branch: before %s", counted(seen))
	w.check(t)
}
