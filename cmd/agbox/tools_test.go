package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestAToolIsHandedOverWithoutWhatItDoesNotRequire(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	a := &app{lookupEnv: func(string) (string, bool) { return "", false }}
	if got := missing(a, "git"); !strings.HasPrefix(got, "The settings of Git cannot be brought in") {
		t.Errorf("without settings of Git: %q", got)
	}
	if _, err := namedExtras(a, []string{"git"}); err == nil {
		t.Error("--with git is accepted without settings of Git")
	}
	if err := os.WriteFile(filepath.Join(home, ".gitconfig"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := missing(a, "git"); got != "" {
		t.Errorf("without the hosts that SSH knows: %q", got)
	}
	if got, err := namedExtras(a, []string{"git"}); err != nil || len(got) != 1 {
		t.Errorf("--with git: %v, %v", got, err)
	}
}

func TestAPresetNeedsALoginOrWhatReplacesIt(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	a := &app{lookupEnv: func(string) (string, bool) { return "", false }}
	o := &presetOptions{preset: findPreset("claude"), described: new(agboxv1.CreateSpec)}
	if got := o.loginLack(a); !strings.HasPrefix(got, "The login of Claude Code cannot be brought in") || !strings.Contains(got, "ANTHROPIC_API_KEY") {
		t.Errorf("without a login: %q", got)
	}
	keyed := &app{lookupEnv: func(name string) (string, bool) {
		return map[string]string{"ANTHROPIC_API_KEY": "x"}[name], name == "ANTHROPIC_API_KEY"
	}}
	if got := o.loginLack(keyed); got != "" {
		t.Errorf("with a key of the caller: %q", got)
	}
	o.described = &agboxv1.CreateSpec{Envs: map[string]string{"CLAUDE_CODE_USE_BEDROCK": "1"}, Workspace: &agboxv1.WorkspaceSpec{Source: "."}}
	if got := o.loginLack(a); got != "" {
		t.Errorf("with a variable of the sandbox file: %q", got)
	}
	if line, _ := o.handedOver(a, nil); line != "claude gets the workspace of the sandbox file." {
		t.Errorf("with a workspace in the sandbox file: %q", line)
	}
	o.described = nil
	if got := o.loginLack(a); got != "" {
		t.Errorf("with a sandbox file that has problems: %q", got)
	}
	if err := os.MkdirAll(filepath.Join(home, ".claude"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".claude", ".credentials.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.described = new(agboxv1.CreateSpec)
	if got := o.loginLack(a); got != "" {
		t.Errorf("with a login: %q", got)
	}
}
