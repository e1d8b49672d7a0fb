package edits

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// scripts is how many random edit scripts are compared with git. SCRIPTS=200 runs all.
const scripts = 16

// script changes a tree at random: lines, additions, removals, renames, modes, links, binary
// files, line ends, and what is below a submodule.
func script(r *rand.Rand, base tree, side string) tree {
	tr := maps.Clone(base)
	for range 1 + r.IntN(5) {
		names := slices.Sorted(maps.Keys(tr))
		if len(names) == 0 {
			return tr
		}
		name := names[r.IntN(len(names))]
		text := tr[name]
		switch r.IntN(9) {
		case 0, 1, 2:
			lines := strings.SplitAfter(text, "\n")
			n := r.IntN(len(lines))
			if strings.HasPrefix(text, "l:") {
				tr[name] = "l:" + side
			} else if n > 0 || !strings.HasPrefix(text, "x:") {
				lines[n] = fmt.Sprintf("%s %d\n", side, r.IntN(3))
				tr[name] = strings.Join(lines, "")
			}
		case 3:
			tr[fmt.Sprintf("new/%d", r.IntN(4))] = fmt.Sprintf("added by %s\n", []string{side, "both"}[r.IntN(2)])
		case 4:
			delete(tr, name)
		case 5:
			to := fmt.Sprintf("moved/%d", r.IntN(6))
			if _, taken := tr[to]; !taken {
				delete(tr, name)
				tr[to] = text
			}
		case 6:
			if rest, was := strings.CutPrefix(text, "x:"); was {
				tr[name] = rest
			} else if !strings.HasPrefix(text, "l:") {
				tr[name] = "x:" + text
			}
		case 7:
			if strings.Contains(text, "\r\n") {
				tr[name] = strings.ReplaceAll(text, "\r\n", "\n")
			} else if !strings.HasPrefix(text, "l:") {
				tr[name] = strings.ReplaceAll(text, "\n", "\r\n")
			}
		case 8:
			tr[fmt.Sprintf("bin%d", r.IntN(2))] = "\x00" + side + strconv.Itoa(r.IntN(2))
		}
	}
	return tr
}

func randomBase(r *rand.Rand) tree {
	base := tree{"link": "l:f0", "bin0": "\x00base", "sub/.git": "gitdir: ../.git/modules/sub\n", "sub/file": "of a submodule\n"}
	for i := range 4 + r.IntN(4) {
		var text strings.Builder
		end := []string{"\n", "\r\n"}[r.IntN(2)]
		for n := range 3 + r.IntN(12) {
			fmt.Fprintf(&text, "file %d line %d%s", i, n, end)
		}
		base[fmt.Sprintf("%sf%d", []string{"", "d/", "d/e/"}[i%3], i)] = []string{"", "x:"}[r.IntN(2)] + text.String()
	}
	return base
}

// repository is a scratch repository for the answers of git.
type repository struct {
	t   *testing.T
	dir string
	// config is a file with settings of a user, which count then.
	config string
}

func (g repository) git(stdin string, args ...string) (string, error) {
	flags, config := []string{"-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.safecrlf=false", "-c", "gc.auto=0", "-c", "maintenance.auto=false"}, g.config
	if config == "" {
		flags, config = append(flags, "-c", "core.autocrlf=false"), "/dev/null"
	}
	cmd := exec.CommandContext(g.t.Context(), "git", append(flags, args...)...)
	cmd.Dir, cmd.Stdin = g.dir, strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL="+config, "LC_ALL=C")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

func (g repository) must(stdin string, args ...string) string {
	g.t.Helper()
	out, err := g.git(stdin, args...)
	if err != nil {
		g.t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return out
}

// answer returns what git apply --3way makes of ours by a patch from base to theirs; ok is
// false if it is a conflict or a refusal.
func answer(t *testing.T, base, ours, theirs tree) (tree, bool) {
	t.Helper()
	g := repository{t: t, dir: t.TempDir()}
	g.must("", "init", "-q")
	fill := func(tr tree) {
		entries, err := os.ReadDir(g.dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != ".git" {
				if err := os.RemoveAll(filepath.Join(g.dir, e.Name())); err != nil {
					t.Fatal(err)
				}
			}
		}
		tr.write(t, g.dir)
	}
	fill(base)
	g.must("", "add", "-Af")
	g.must("", "commit", "-q", "--allow-empty", "-m", "base")
	fill(theirs)
	g.must("", "add", "-Af")
	patch := g.must("", "diff", "--cached", "--binary", "--full-index", "-M100%", "HEAD")
	fill(ours)
	g.must("", "add", "-Af")
	g.must("", "commit", "-q", "--allow-empty", "-m", "ours")
	if patch == "" {
		return load(t, g.dir), true
	}
	out, err := g.git(patch, "apply", "--3way", "-")
	return load(t, g.dir), err == nil && !strings.Contains(out, "with conflicts")
}

// TestRandomEditsComeOutAsWithGit compares random edit scripts on both sides with git apply
// --3way: the same files, or a conflict. Where git has a clean result and Apply has a conflict
// it is counted; the other way round Apply must have what git merge-file has.
func TestRandomEditsComeOutAsWithGit(t *testing.T) {
	t.Parallel()
	n := scripts
	if all, err := strconv.Atoi(os.Getenv("SCRIPTS")); err == nil {
		n = all
	}
	equal, both, only, more := 0, 0, 0, 0
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 15))
		base := randomBase(r)
		ours, theirs := script(r, base, "ours"), script(r, base, "theirs")
		theirs["sub/.git"] = base["sub/.git"] // inside of a repository: see below
		ours["sub/.git"] = base["sub/.git"]
		plain := func(tr tree) tree { // git takes a folder with .git for a submodule
			out := maps.Clone(tr)
			delete(out, "sub/.git")
			return out
		}
		want, clean := answer(t, plain(base), plain(ours), plain(theirs))
		theirs["sub/.git"] = "gitdir: /elsewhere\n" // the pointer of a submodule never comes out
		got, out, advanced := brought(t, base, ours, theirs)
		if got["sub/.git"] != base["sub/.git"] {
			t.Errorf("seed %d: the submodule was moved", seed)
		}
		got = plain(got)
		conflicts := out.Conflicts() - 1 // sub/.git
		switch {
		case clean && conflicts == 0:
			equal++
			wantTree(t, fmt.Sprintf("seed %d: the folder", seed), got, want)
			wantTree(t, fmt.Sprintf("seed %d: the base", seed), plain(advanced), plain(theirs))
		case !clean && conflicts > 0:
			both++
		case clean:
			only++
			t.Logf("seed %d: git is content, Apply has %+v", seed, out.Outcomes)
		default:
			more++
			wantMerged(t, seed, base, ours, theirs, got)
		}
	}
	t.Logf("%d scripts: %d as git has it, %d conflicts of both, %d of Apply alone, %d of git alone", n, equal, both, only, more)
	if equal < n/4 || both < n/20 {
		t.Error("the scripts test too little")
	}
}

// wantMerged checks a clean result that git apply refuses: each path has what both sides
// agree on, or what the side has that changed it, or what git merge-file makes.
func wantMerged(t *testing.T, seed int, base, ours, theirs, got tree) {
	t.Helper()
	renamed := make(map[string]string)
	for _, c := range changes(t, base, theirs) {
		if c.From != "" {
			renamed[c.Path] = c.From
		}
	}
	all := maps.Clone(base)
	maps.Copy(all, ours)
	maps.Copy(all, theirs)
	for name := range all {
		b, o, th, g := base[name], ours[name], theirs[name], got[name]
		from, moved := renamed[name]
		switch {
		case name == "sub/.git":
		case o == th && g == o, b == o && g == th, b == th && g == o, moved && g == ours[from]:
		default:
			text, conflicts, err := (&merger{ctx: t.Context(), dir: t.TempDir(), label: "sandbox"}).lines([]byte(content(o)), []byte(content(b)), []byte(content(th)))
			if err != nil || conflicts || content(g) != string(text) {
				t.Errorf("seed %d: %s has %q, git merge-file %q (%v, %v)", seed, name, g, text, conflicts, err)
			}
		}
	}
}
