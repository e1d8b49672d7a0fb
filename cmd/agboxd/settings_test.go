package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon"
	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/daemon/reconcile"
	"github.com/agbox/agbox/daemon/server"
	"github.com/agbox/agbox/internal/paths"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// home makes an install with this configuration file, or without one if the text is
// empty.
func home(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("AGBOX_HOME", dir)
	if text == "" {
		return
	}
	if err := os.MkdirAll(filepath.Join(dir, "config"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config", "agboxd.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// begin returns the configuration with which "agboxd run" would run.
func begin(args ...string) (daemon.Config, error) {
	var got daemon.Config
	cmd := runCommand(new(bool), func(_ context.Context, cfg daemon.Config) error {
		got = cfg
		return nil
	})
	cmd.SetArgs(append([]string{}, args...)) // for nil it would use those of the test binary
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err := cmd.Execute()
	return got, err
}

// TestTheEngineOfTheInstallWinsOverTheEnvironment: any shell may start the daemon again.
func TestTheEngineOfTheInstallWinsOverTheEnvironment(t *testing.T) {
	t.Setenv("DOCKER_HOST", "unix:///shell.sock")
	install := func(text string) paths.Install {
		home(t, text)
		install, err := paths.FromEnv()
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(install.Data, 0o700); err != nil {
			t.Fatal(err)
		}
		return install
	}
	want := func(engine, from string, args ...string) {
		t.Helper()
		got, err := begin(args...)
		if err != nil || got.EngineHost != engine || !strings.Contains(got.EngineFrom, from) {
			t.Errorf("the engine is %q, %s (%v); want %q, %s", got.EngineHost, got.EngineFrom, err, engine, from)
		}
	}
	first := install("")
	want("unix:///shell.sock", "DOCKER_HOST")
	if err := os.WriteFile(first.EngineAddress(), []byte("unix:///known.sock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("unix:///known.sock", first.EngineAddress())
	want("unix:///flag.sock", "flag", "--engine", "unix:///flag.sock")
	var shown strings.Builder
	cmd := &cobra.Command{}
	s := addSettings(cmd)
	if _, err := s.load(); err != nil {
		t.Fatal(err)
	}
	if err := s.print(&shown, "x"); err != nil || !strings.Contains(shown.String(), "engine: unix:///known.sock # stored in "+first.EngineAddress()) {
		t.Errorf("the settings are shown as\n%s(%v)", shown.String(), err)
	}
	second := install("engine: unix:///file.sock\n")
	if err := os.WriteFile(second.EngineAddress(), []byte("unix:///known.sock\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("unix:///file.sock", "agboxd.yaml")
}

func TestFlagsWinOverTheFileAndTheFileOverDefaults(t *testing.T) {
	home(t, `# what we run with
engine: unix:///run/other.sock
keep-execs: 2d
max-execs: 7
subnets: [10.1.0.0/16, 10.2.0.0/16]
revival: revive
max-exec-log: 256m
log-level: debug
`)
	var got daemon.Config
	cmd := runCommand(new(bool), func(_ context.Context, cfg daemon.Config) error { got = cfg; return nil })
	cmd.SetArgs([]string{"--max-execs", "9", "--subnets", "10.9.0.0/16", "--subnets", "10.8.0.0/16"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	if got.EngineHost != "unix:///run/other.sock" || got.Retention.KeepExecs != 48*time.Hour || got.Retention.MaxExecs != 9 ||
		got.Revival != agboxv1.RevivalPolicy_REVIVAL_POLICY_REVIVE || got.MaxExecLog != 256<<20 || got.MaxSandboxLog != 10<<30 ||
		got.Retention.KeepDeleted != 24*time.Hour || got.Resync != 10*time.Second {
		t.Errorf("the settings are %+v", got)
	}
	if len(got.SubnetRanges) != 2 || got.SubnetRanges[0].String() != "10.9.0.0/16" {
		t.Errorf("the ranges are %v, want those of the flags alone", got.SubnetRanges)
	}
	if !got.Log.Enabled(t.Context(), -4) {
		t.Error("the log level of the file does not hold")
	}
}

func TestWithoutAFileTheDefaultsHold(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n"} {
		home(t, text)
		if _, err := begin(); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestChildrenAreHeldUnlessTheOperatorSaysOtherwise: what an orchestrator has spawned ends with it.
func TestChildrenAreHeldUnlessTheOperatorSaysOtherwise(t *testing.T) {
	for text, want := range map[string]agboxv1.AgentLifetime{
		"": agboxv1.AgentLifetime_AGENT_LIFETIME_HELD, "child-lifetime: detached\n": agboxv1.AgentLifetime_AGENT_LIFETIME_DETACHED,
	} {
		home(t, text)
		if got, err := begin(); err != nil || got.ChildLifetime != want {
			t.Errorf("%q: children are %v (%v), want %v", text, got.ChildLifetime, err, want)
		}
	}
}

func TestEveryProblemOfTheFileIsASentenceWithItsLine(t *testing.T) {
	home(t, "resync: soon\nmax-exec: 3\nkeep-execs: 1ms\nrevival:\nresync: 1s\nsubnets: [10.0.0.0]\nengine: {a: b}\nmax-events: 0\nlog-level: loud\n")
	// A flag does not hide an error of its setting in the file.
	_, err := begin("--max-events", "5")
	if err == nil {
		t.Fatal("the file was accepted")
	}
	for _, want := range []string{
		"agboxd.yaml", `Line 1: The setting "resync"`, `Line 2: There is no setting "max-exec"`, "Line 3:", "give at least 1s",
		"Line 4:", "Line 5:", "already, in line 1", "Line 6:", "10.222.0.0/16", "Line 7:", "Line 8:", "Line 9:",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing in\n%v", want, err)
		}
	}
	for line := range strings.Lines(err.Error()) {
		if !strings.HasSuffix(strings.TrimSpace(line), ".") {
			t.Errorf("no sentence: %s", line)
		}
	}
}

func TestFilesThatAreNoMapOfSettingsAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"- a\n":                       "Line 1:",
		"resync: 10s\n---\nresync: 1": "more than one document",
		"a: [\n":                      "not YAML",
		strings.Repeat("#", 2<<20):    "longer than",
		"preflight-thing: 1\n":        "There is no setting",
		"schema: 1\n":                 "There is no setting",
	} {
		home(t, text)
		if _, err := begin(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v, want %q", text, err, want)
		}
	}
}

func TestTheFileIsReadAsSandboxFilesAre(t *testing.T) {
	home(t, "subnets: &net [10.1.0.0/16]\nkeep-execs: 2d\n")
	if _, err := begin(); err != nil {
		t.Errorf("an anchor: %v", err)
	}
	home(t, "keep-execs: &day 1d\nkeep-deleted: *day\n")
	if cfg, err := begin(); err != nil || cfg.Retention.KeepDeleted != 24*time.Hour {
		t.Errorf("an alias: %v, %v", cfg.Retention, err)
	}
	home(t, "keep-execs: !!binary MWQ=\n")
	if _, err := begin(); err == nil || !strings.Contains(err.Error(), "Line 1: The tag !!binary is not known here") {
		t.Errorf("a tag: %v", err)
	}
}

func TestThePendingRecoveryIsResumeUnlessTheSettingSaysFail(t *testing.T) {
	for _, tc := range []struct {
		file string
		args []string
		want machine.PendingRecovery
	}{
		{"", nil, machine.PendingResume},
		{"pending-recovery: fail\n", nil, machine.PendingFail},
		{"pending_recovery: fail\n", nil, machine.PendingFail},
		{"pending-recovery: fail\n", []string{"--pending-recovery", "resume"}, machine.PendingResume},
		{"", []string{"--pending-recovery=fail"}, machine.PendingFail},
	} {
		home(t, tc.file)
		got, err := begin(tc.args...)
		if err != nil || got.PendingRecovery != tc.want {
			t.Errorf("file %q, flags %q: %v, %v", tc.file, tc.args, got.PendingRecovery, err)
		}
	}
	for _, text := range []string{"pending-recovery: retry\n", "pending_recovery: fail\npending-recovery: fail\n"} {
		home(t, text)
		if _, err := begin(); err == nil || !strings.Contains(err.Error(), "pending-recovery") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestConfigShowsWhatCouldStandInTheFile(t *testing.T) {
	home(t, "subnets: [10.1.0.0/16, 10.2.0.0/16]\nkeep-execs: 36h\n")
	cmd := newScratch()
	s := addSettings(cmd)
	if err := cmd.ParseFlags([]string{"--max-sandbox-log", "512m", "--engine", "unix:///a: b"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.load(); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := s.print(&b, "the file"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# the file\n", "keep-execs: 36h # file\n", "max-sandbox-log: 512m # flag\n", "max-exec-log: 1g # default\n", "pending-recovery: resume # default\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, b.String())
		}
	}
	home(t, b.String())
	got, err := begin()
	if err == nil && (got.EngineHost != "unix:///a: b" || len(got.SubnetRanges) != 2 || got.MaxSandboxLog != 512<<20) {
		t.Errorf("read again it is %+v", got)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestPoolsOfTheFile: what a pool has beside its size is a sandbox file.
func TestPoolsOfTheFile(t *testing.T) {
	home(t, "pool:\n  stack:\n    size: 3\n    image: \"yes\"\n    labels: {a: \"1\", b: two}\n    envs: {A: \"1\", API_KEY: canary, MINE: canary}\n    secret_envs: [MINE]\n    services:\n    - {name: db, image: redis}\n  other: {image: x}\n")
	cmd := newScratch()
	s := addSettings(cmd)
	if _, err := s.load(); err != nil {
		t.Fatal(err)
	}
	var shown strings.Builder
	if err := s.print(&shown, "the file"); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(shown.String(), "canary") {
		t.Errorf("it is shown with secrets:\n%s", shown.String())
	}
	for _, secret := range []string{"canary", "(secret)"} { // as it is written, and as it is shown
		got, err := begin()
		if err != nil || len(got.Pools) != 2 {
			t.Fatalf("there are the pools %v (%v)\n%s", got.Pools, err, shown.String())
		}
		stack, other := got.Pools[0], got.Pools[1]
		want := &agboxv1.CreateSpec{
			Image: "yes", Labels: map[string]string{"a": "1", "b": "two"}, Services: []*agboxv1.ServiceSpec{{Name: "db", Image: "redis"}},
			Envs: map[string]string{"A": "1", "API_KEY": secret, "MINE": secret}, SecretEnvs: []string{"MINE"},
		}
		if stack.Name != "stack" || stack.Size != 3 || !proto.Equal(specOf(t, stack), want) || filepath.Base(stack.File) != "agboxd.yaml" || stack.Home == "" {
			t.Errorf("the first is %+v\n%s", stack, stack.Config)
		}
		if other.Name != "other" || other.Size != 1 || !proto.Equal(specOf(t, other), &agboxv1.CreateSpec{Image: "x"}) {
			t.Errorf("the second is %+v\n%s", other, other.Config)
		}
		home(t, shown.String())
	}
	for text, want := range map[string]string{
		"pool: 2\n":                                 "Line 1: The setting \"pool\" needs a map",
		"pool:\n  Stack: {image: x}\n":              "Line 2: \"Stack\" is no name for a pool",
		"pool:\n  auto: {image: x}\n":               "Line 2: \"auto\" is no name for a pool",
		"pool:\n  a: [x]\n":                         "Line 2: The pool \"a\" needs a size and the fields",
		"pool:\n  a:\n    size: 65\n    image: x\n": "Line 3: The size of the pool \"a\" must be a number from 1 to 64.",
		"pool:\n  a:\n    size: 1\n    imag: x\n":   "Line 4",
		"pool:\n  a:\n    image: [x]\n":             "Line 3",
		"pool:\n  a:\n    base: x.yaml\n":           "Line 3: The pool \"a\" cannot have a base",
		"auto-pool: 65\n":                           "more than 64",
		"pool: {a: {size: [2]}}\n":                  "must be a number from 1 to 64",
		"pool: {a: {image: x}}\npool: {}\n":         "pool",
	} {
		home(t, text)
		if _, err := begin(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// specOf is what the configuration of a pool describes.
func specOf(t *testing.T, p server.PoolTemplate) *agboxv1.CreateSpec {
	t.Helper()
	report, out := new(document.Report), new(agboxv1.CreateSpec)
	r := document.Reader{File: p.File, Report: report}
	r.Message(document.YAML(p.File, p.Config, report), out.ProtoReflect(), "")
	if len(report.Problems) > 0 {
		t.Errorf("%s: %v", p.Config, report.Problems)
	}
	return out
}

func TestTheMemoryOfSandboxesIsAShareOrASize(t *testing.T) {
	for text, want := range map[string]string{
		"": "80%", "sandbox-memory: 50%\n": "50%", "sandbox-memory: 2048m\n": "2g", "sandbox-memory: unlimited\n": "unlimited",
	} {
		home(t, text)
		got, err := begin()
		if shown := (memoryValue{&got.SandboxMemory}).String(); err != nil || shown != want {
			t.Errorf("%q is shown as %s, %v", text, shown, err)
		}
	}
	for _, text := range []string{"0%", "101%", "x%", "1m", "0", "all"} {
		home(t, "sandbox-memory: "+text+"\n")
		if _, err := begin(); err == nil || !strings.Contains(err.Error(), "sandbox-memory") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestAPolicyWithoutHostAccessRequiresTheFence(t *testing.T) {
	strict := hostfiles.NoPolicy()
	strict.HostAccess = false
	for _, c := range []struct {
		bound       *hostfiles.Policy
		asked, want reconcile.FenceMode
		refused     bool
	}{
		{hostfiles.NoPolicy(), reconcile.FenceIfPossible, reconcile.FenceIfPossible, false},
		{hostfiles.NoPolicy(), reconcile.FenceOff, reconcile.FenceOff, false},
		{strict, reconcile.FenceIfPossible, reconcile.FenceRequired, false},
		{strict, reconcile.FenceRequired, reconcile.FenceRequired, false},
		{strict, reconcile.FenceOff, 0, true},
	} {
		got, err := boundFence(c.asked, c.bound)
		if (err != nil) != c.refused || err == nil && got != c.want {
			t.Errorf("host access %v, asked %d: got %d, %v", c.bound.HostAccess, c.asked, got, err)
		}
	}
}
