package projections

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEveryToolIsComplete(t *testing.T) {
	for _, name := range []string{"git", "gh", "ssh-agent", "claude", "claude-login", "codex", "codex-login", "opencode", "opencode-login", "gemini-login", "uv", "npm", "apt"} {
		if Find(name) == nil {
			t.Errorf("there is no tool %s", name)
		}
	}
	if Find("frobnicate") != nil {
		t.Error("any name is a tool")
	}
	for _, tool := range All() {
		if tool.Name == "" || tool.Description == "" || len(tool.Items) == 0 || strings.HasSuffix(tool.Description, ".") {
			t.Errorf("tool %+v", tool)
		}
		for _, item := range tool.Items {
			inHome := strings.HasPrefix(item.To, "~/")
			switch {
			case item.What == "", !inHome && !filepath.IsAbs(item.To):
				t.Errorf("%s: %+v", tool.Name, item)
			case inHome && (item.Kind == Mount || item.Kind == Cache):
				t.Errorf("%s: the home of a user is not known when %s is mounted", tool.Name, item.What)
			case (item.Kind == Mount || item.Kind == Copy) == (len(item.From) == 0):
				t.Errorf("%s: %s has the places %v", tool.Name, item.What, item.From)
			case (item.Kind == File) != (item.Content != ""), item.Required && item.Hint == "", strings.HasSuffix(item.Hint, "."):
				t.Errorf("%s: %+v", tool.Name, item)
			}
		}
	}
}

func TestVariablesListsTheVariablesOfTheFile(t *testing.T) {
	got := Variables()
	for _, name := range got {
		if !regexp.MustCompile(`^[A-Z_]+$`).MatchString(name) {
			t.Errorf("%q is no variable", name)
		}
	}
	if !slices.Contains(got, "SSH_AUTH_SOCK") || !slices.Contains(got, "XDG_CONFIG_HOME") {
		t.Errorf("got %v", got)
	}
}

func TestTheFirstExistingPathIsUsed(t *testing.T) {
	home, xdg := t.TempDir(), t.TempDir()
	write := func(path string) string {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	source := func(h Host) Found { return h.Find(Find("git"))[0] }
	h := Host{Home: home, Env: map[string]string{"XDG_CONFIG_HOME": xdg}}
	if f := source(h); f.Source != "" || !strings.Contains(f.Missing, "git config --global") || !strings.Contains(f.Missing, home+"/.gitconfig") {
		t.Errorf("with nothing: %+v", f)
	}
	far := write(filepath.Join(home, ".config/git/config"))
	if f := source(h); f.Source != far || f.Missing != "" {
		t.Errorf("with the last: %+v", f)
	}
	near := write(filepath.Join(xdg, "git/config"))
	if f := source(h); f.Source != near {
		t.Errorf("with the variable: %+v", f)
	}
	first := write(filepath.Join(home, ".gitconfig"))
	if f := source(h); f.Source != first {
		t.Errorf("with the first: %+v", f)
	}
	h.Env["GIT_CONFIG_GLOBAL"] = "relative"
	if f := source(h); f.Source != first {
		t.Errorf("with a variable that is no path: %+v", f)
	}
	if f := source(Host{}); f.Source != "" {
		t.Errorf("without a home: %+v", f)
	}
}

func TestCachesAreBelowTheirFolder(t *testing.T) {
	h := Host{Caches: "/data/tool-caches"}
	if f := h.Find(Find("npm"))[0]; f.Source != "/data/tool-caches/npm" || f.Missing != "" {
		t.Errorf("got %+v", f)
	}
}

func TestAVariableOfUnlessEnvReplacesARequiredItem(t *testing.T) {
	login := Find("claude").Items[0]
	if login.Dispensable(nil) || login.Dispensable(map[string]string{"ANTHROPIC_API_KEY": ""}) || !login.Dispensable(map[string]string{"ANTHROPIC_API_KEY": "x"}) {
		t.Error("the wrong thing is dispensable")
	}
}

func TestGitAloneProvesNoIdentity(t *testing.T) {
	for _, item := range Find("git").Items {
		if item.Credential {
			t.Errorf("git brings in the %s", item.What)
		}
	}
}

func TestALoginToolHasNoSettings(t *testing.T) {
	for _, tool := range All() {
		if !strings.HasSuffix(tool.Name, "-login") {
			continue
		}
		credentials := 0
		for _, item := range tool.Items {
			if item.Credential {
				credentials++
			}
			if strings.Contains(item.What, "settings") || strings.Contains(item.What, "state") {
				t.Errorf("%s brings in the %s", tool.Name, item.What)
			}
		}
		if credentials != 1 {
			t.Errorf("%s brings in %d credentials", tool.Name, credentials)
		}
	}
}
