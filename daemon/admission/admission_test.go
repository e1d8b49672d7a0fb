package admission

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"buf.build/go/protovalidate"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
)

// bare is a Controller without an engine.
func bare(t testing.TB) *Controller {
	t.Helper()
	rules := protovalidate.GlobalValidator
	return New(Options{Rules: rules, Log: slog.New(slog.DiscardHandler)})
}

func TestCommandOverTheKernelsLimitIsRefused(t *testing.T) {
	for name, req := range map[string]*agboxv1.CreateExecRequest{
		"one word":  {Command: []string{"echo", strings.Repeat("a", 128<<10)}},
		"all words": {Command: strings.Fields(strings.Repeat("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa ", 60000))},
		"a value":   {Command: []string{"env"}, EnvOverrides: map[string]string{"A": strings.Repeat("a", 128<<10)}},
	} {
		if err := CheckCommand(req); fault.ReasonOf(err) != agboxv1.ErrorReason_COMMAND_TOO_LONG {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFileAndFieldsAreMerged(t *testing.T) {
	c := bare(t)
	spec, err := accepted(c.merge(&agboxv1.CreateSandboxRequest{
		ConfigYaml: []byte("image: base\nenvs: {A: file, B: file}\ncommand: [a]\nidle_ttl: 60s\n"),
		CreateSpec: &agboxv1.CreateSpec{Image: "other", Envs: map[string]string{"B": "field"}, Command: []string{"b"}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if spec.GetImage() != "other" || spec.GetEnvs()["A"] != "file" || spec.GetEnvs()["B"] != "field" ||
		strings.Join(spec.GetCommand(), " ") != "a b" || spec.GetIdleTtl().GetSeconds() != 60 {
		t.Errorf("merged to %v", spec)
	}
}

func TestBadFilesAreRefusedWithTheirLine(t *testing.T) {
	c := bare(t)
	bomb := "image: x\nlabels:\n  a: &a [x,x,x,x,x,x,x,x,x]\n"
	for i := range 9 {
		bomb += fmt.Sprintf("  b%d: &b%d [*%s]\n", i, i, strings.Repeat(map[bool]string{true: "a", false: fmt.Sprintf("b%d", i-1)}[i == 0]+",*", 8)+"a")
	}
	for name, tc := range map[string]struct{ yaml, says string }{
		"unknown key": {"image: x\nimagee: y\n", ":2:"},
		"wrong type":  {"image: x\n\nlabels: 7\n", ":3:"},
		"no image":    {"labels: {a: b}\n", "needs an image"},
		"a bomb":      {bomb, ""},
		"not YAML":    {"image: [", ""},
		"a second":    {"image: x\n---\nimage: y\n", "more than one document"},
	} {
		_, err := accepted(c.merge(&agboxv1.CreateSandboxRequest{ConfigYaml: []byte(tc.yaml)}))
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestWhatThisHostLacksIsToldTogetherWithTheOtherMistakes(t *testing.T) {
	result := bare(t).Resolve(t.Context(), &agboxv1.CreateSandboxRequest{
		ConfigDir: t.TempDir(), ConfigYaml: []byte("imagee: x\nmounts: [\"./nosuch:/x\", \"relative\"]\nbuiltin_tools: [gitt]\nworking_dir: w\n"),
	})
	if result.Spec != nil {
		t.Fatal(result.Spec)
	}
	var got []string
	for _, p := range result.Problems {
		got = append(got, fmt.Sprintf("%d %s", p.GetLine(), p.GetField()))
	}
	if want := "1 imagee|2 mounts[0].source|2 mounts[1]|3 builtin_tools[0]|4 working_dir"; strings.Join(got, "|") != want {
		t.Errorf("got %s\nwant %s", strings.Join(got, "|"), want)
	}
}

func TestAListThatIsFarTooLongIsNotLookedForOnTheHost(t *testing.T) {
	var lines strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&lines, "  - /nosuch/%d:/x%[1]d\n", i)
	}
	result := bare(t).Resolve(t.Context(), &agboxv1.CreateSandboxRequest{
		ConfigYaml: []byte("image: x\nmounts:\n" + lines.String()),
	})
	if len(result.Problems) != 1 || !strings.Contains(result.Problems[0].GetMessage(), "more than 256 items") {
		t.Errorf("got %.300v", result.Problems)
	}
}

// TestADerivedSandboxIsAdmittedByThePresentRules: a program has put a link into the path of a
// mount, and the operator has a policy by now.
func TestADerivedSandboxIsAdmittedByThePresentRules(t *testing.T) {
	root := t.TempDir()
	mounted := filepath.Join(root, "project", "data")
	other := filepath.Join(root, "other")
	for _, dir := range []string{mounted, filepath.Join(other, "data")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	derived := &agboxv1.CreateSpec{
		Image: "x", SourcesResolved: true, Derived: &agboxv1.DerivedSpec{Parent: "x"},
		Mounts: []*agboxv1.MountSpec{{Source: mounted, Target: "/data"}}, Security: &agboxv1.SecuritySpec{AllowHost: proto.Bool(true)},
	}
	c := New(Options{Log: slog.New(slog.DiscardHandler), Host: hostfiles.Checker{Host: spec.Host{Home: root}}})
	if err := c.Derived(derived); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(root, "project"), filepath.Join(root, "was")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(root, "project")); err != nil {
		t.Fatal(err)
	}
	if err := c.Derived(derived); err == nil || !strings.Contains(err.Error(), "mounts[0].source") || strings.Contains(err.Error(), root) {
		t.Errorf("through a link, of which the program may not learn: %v", err)
	}
	bound := hostfiles.NoPolicy()
	bound.HostAccess = false
	c = New(Options{Host: hostfiles.Checker{Policy: bound}})
	if err := c.Derived(&agboxv1.CreateSpec{Security: derived.GetSecurity()}); err == nil || !strings.Contains(err.Error(), "security.allow_host") {
		t.Errorf("what the operator forbids by now: %v", err)
	}
}

func TestLifetimesThatASpecLeavesOutAreFilledIn(t *testing.T) {
	hour, never := time.Hour, time.Duration(0)
	set := Lifetimes{Idle: &hour, Cleanup: &never}
	own := &agboxv1.CreateSpec{IdleTtl: durationpb.New(0), CleanupTtl: durationpb.New(time.Second)}
	for name, tc := range map[string]struct {
		operator      Lifetimes
		published     bool
		own           bool
		idle, cleanup *durationpb.Duration
	}{
		"of a client of ours":            {},
		"of a published client":          {published: true, idle: durationpb.New(10 * time.Minute), cleanup: durationpb.New(360 * time.Hour)},
		"by the operator":                {operator: set, idle: durationpb.New(hour), cleanup: durationpb.New(0)},
		"of a published client, by them": {operator: set, published: true, idle: durationpb.New(hour), cleanup: durationpb.New(0)},
		"set by the spec":                {operator: set, published: true, own: true, idle: own.GetIdleTtl(), cleanup: own.GetCleanupTtl()},
	} {
		s := &agboxv1.CreateSpec{Published: tc.published}
		if tc.own {
			s.IdleTtl, s.CleanupTtl = own.GetIdleTtl(), own.GetCleanupTtl()
		}
		tc.operator.fill(s)
		same := func(a, b *durationpb.Duration) bool {
			return (a == nil) == (b == nil) && a.AsDuration() == b.AsDuration()
		}
		if !same(s.GetIdleTtl(), tc.idle) || !same(s.GetCleanupTtl(), tc.cleanup) {
			t.Errorf("%s: idle_ttl %v and cleanup_ttl %v, want %v and %v", name, s.GetIdleTtl(), s.GetCleanupTtl(), tc.idle, tc.cleanup)
		}
	}
}
