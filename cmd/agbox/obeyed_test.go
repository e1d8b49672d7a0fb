package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestAllFilesThatAnAgentObeysAreAskedAbout(t *testing.T) {
	const may, named, imported, brings = "may run programs", "is named by ", "is imported by ", "brings other files"
	for name, c := range map[string]struct {
		agent string
		files map[string]string
		want  []string
	}{
		"nothing": {"claude", map[string]string{"CLAUDE.md": "Ask @anna, and use @types/node.\n", "src/a": "", "AGENTS.md": "@src/a"}, nil},
		"commands, agents and skills, in any folder": {"claude",
			map[string]string{".claude/agents/a.md": "", "sub/deep/.claude/skills/s/SKILL.md": "", "sub/claude/x": ""},
			[]string{".claude/agents/a.md " + may, "sub/deep/.claude/skills/s/SKILL.md " + may}},
		"programs of hooks": {"claude",
			map[string]string{
				".claude/settings.json": `{"hooks": {"SessionStart": [{"hooks": [{"command": "sh tools/a.sh && \"$CLAUDE_PROJECT_DIR\"/tools/b.sh; ${CLAUDE_PROJECT_DIR}/tools/c.sh /workspace/tools/d.sh"}]}]}, "permissions": {"allow": ["Read(src/**)"]}}`,
				"tools/a.sh":            "", "tools/b.sh": "", "tools/c.sh": "", "tools/d.sh": "", "tools/e.sh": "", "src/x": "",
			},
			[]string{".claude/settings.json " + may, "tools/a.sh " + named, "tools/b.sh " + named, "tools/c.sh " + named, "tools/d.sh " + named}},
		"a folder of plugins": {"claude",
			map[string]string{".claude/settings.json": `{"source": "directory", "path": "./market"}`, "market/p/hooks.json": "", "src/x": ""},
			[]string{".claude/settings.json " + may, "market/p/hooks.json " + named}},
		"imports": {"claude",
			map[string]string{"CLAUDE.md": "Read @docs/a.md.\n", "docs/a.md": "@b.md and @~/.claude/.credentials.json", "docs/b.md": "@a.md", "sub/CLAUDE.local.md": "@/etc/passwd @../../x"},
			[]string{"CLAUDE.md " + brings, "docs/a.md " + imported, "docs/b.md " + imported, "docs/a.md brings in ~/.claude/.credentials.json, which is outside",
				"sub/CLAUDE.local.md " + brings, "sub/CLAUDE.local.md brings in /etc/passwd", "sub/CLAUDE.local.md brings in ../../x"}},
		"imports with marks, spaces and @ in their paths": {"claude",
			map[string]string{"CLAUDE.md": "**@a@b.md** [@my\\ docs/x.md](y) @it's.) mail@c @c#part", "a@b.md": "", "my docs/x.md": "", "it's.)": "", "c": ""},
			[]string{"CLAUDE.md " + brings, "a@b.md " + imported, "docs/x.md " + imported, "it's.) " + imported, "c " + imported}},
		"instructions below .claude": {"claude",
			map[string]string{".claude/CLAUDE.md": "@../docs/a", "docs/a": "@b", "docs/b": "", "sub/.claude/rules/go/r.md": "@../../../x/y", "sub/x/y": "@z", "sub/x/z": "", ".claude/agents/r.md": "Ask @c", "c": "@docs/d", "docs/d": ""},
			[]string{".claude/CLAUDE.md " + may, "docs/a " + named, "docs/b " + imported,
				"sub/.claude/rules/go/r.md " + may, "sub/x/y " + named, "sub/x/z " + imported, ".claude/agents/r.md " + may}},
		"a file that two import is followed as far as from the nearer one": {"claude",
			map[string]string{"CLAUDE.md": "@1 @5", "1": "@2", "2": "@3", "3": "@4", "4": "@5", "5": "@6", "6": "@7", "7": "@8", "8": "@9", "9": "@10", "10": ""},
			[]string{"CLAUDE.md " + brings, "1 " + imported, "2 " + imported, "3 " + imported, "4 " + imported, "5 " + imported, "6 " + imported, "7 " + imported, "8 " + imported, "9 " + imported,
				"9 brings in more files, which are not shown: they are more than 5 steps away"}},
		"servers of MCP": {"claude", map[string]string{".mcp.json": `{"mcpServers": {"a": {"command": "tools/serve"}}}`, "tools/serve": ""}, []string{".mcp.json " + may, "tools/serve " + named}},
		"what git keeps": {"claude", map[string]string{".git/refs/heads/.claude/x": "", ".git/CLAUDE.md": "@config", ".git/config": "", "node_modules/m/.claude/settings.json": "{}"},
			[]string{"node_modules/m/.claude/settings.json " + may}},
		"a server of Codex": {"codex", map[string]string{".codex/config.toml": "[mcp_servers.a]\ncommand = \"./serve\"\n", "serve": ""}, []string{".codex/config.toml " + may, "serve " + named}},
		"what opencode includes": {"opencode",
			map[string]string{"opencode.json": `{"plugin": ["./p.ts"], "key": "{file:keys/one}"}`, "p.ts": "", "keys/one": "", "tui.json": ""},
			[]string{"opencode.json " + may, "p.ts " + named, "keys/one " + named, "tui.json " + may}},
		"Gemini": {"gemini", map[string]string{".gemini/settings.json": `{"command": "bin/serve"}`, "bin/serve": "", ".env": "", "sub/.env": ""}, []string{".gemini/settings.json " + may, "bin/serve " + named, ".env " + may}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &presetOptions{preset: findPreset(c.agent)}
			q, err := o.obeyed(t.Context(), inFolder(t, c.files))
			if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, r := range q.Requests {
				said += r.Text + "\n"
			}
			for _, want := range c.want {
				what, why, _ := strings.Cut(want, " ")
				if !strings.Contains(said, " "+what+", which "+why) && !strings.Contains(said, " "+want) {
					t.Errorf("it does not say %q:\n%s", want, said)
				}
			}
			if len(q.Requests) != len(c.want) {
				t.Errorf("there are %d lines, want %d:\n%s", len(q.Requests), len(c.want), said)
			}
		})
	}
}

func TestWhatCannotAllBeShownIsLeftOut(t *testing.T) {
	many := map[string]string{}
	for i := range maxObeyed + 1 {
		many[fmt.Sprintf("sub/.claude/skills/%d", i)] = ""
	}
	large := map[string]string{}
	for i := range 5 {
		large[fmt.Sprintf(".claude/%d", i)] = strings.Repeat("x", 1<<20)
	}
	var imports strings.Builder
	for i := range 100_000 {
		fmt.Fprintf(&imports, "@~/%d ", i)
	}
	for name, c := range map[string]struct {
		files map[string]string
		link  string
		want  string
	}{
		"imports": {map[string]string{"CLAUDE.md": imports.String()}, "", "CLAUDE.md brings in too many files"},
		"many":    {many, "", "more than 256 files"}, "large": {large, "", "more than 4 MiB"},
		"a folder behind a link":     {map[string]string{"x/a": ""}, "sub/.claude", "not a regular file"},
		"a named file behind a link": {map[string]string{".claude/settings.json": "sh ./run"}, "run", "symbolic link"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := inFolder(t, c.files)
			if c.link != "" {
				to := map[bool]string{true: "/etc/hostname", false: "../x"}[c.link == "run"]
				if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, c.link)), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink(to, filepath.Join(dir, c.link)); err != nil {
					t.Fatal(err)
				}
			}
			o := &presetOptions{preset: findPreset("claude")}
			if _, err := o.obeyed(t.Context(), dir); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

// TestAnImportOfManyMarksTakesFewLooks: each mark may end the path. The question says so.
func TestAnImportOfManyMarksTakesFewLooks(t *testing.T) {
	dir := inFolder(t, map[string]string{"CLAUDE.md": "@a*a" + strings.Repeat("*/a*a", 10_000) + " @b" + strings.Repeat("*", maxCuts), "a": "", "b": ""})
	search := func(ctx context.Context, looked int) (*settingsSearch, error) {
		s := &settingsSearch{ctx: ctx, folder: dir, preset: findPreset("claude"), seen: make(map[string]bool), followed: make(map[string]int), deep: make(map[string]bool), looked: looked}
		return s, s.importsOf("CLAUDE.md", maxImports)
	}
	s, err := search(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if most := 4 * (maxCuts + 1); s.looked == 0 || s.looked > most {
		t.Errorf("it takes %d looks, want at most %d", s.looked, most)
	}
	said := ""
	for _, r := range s.q.Requests {
		said += r.Text + "\n"
	}
	for _, want := range []string{"a, which is imported by CLAUDE.md", "b, which is imported by CLAUDE.md", "import    CLAUDE.md may bring in files that are not shown: "} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if strings.Count(said, "\n") != 4 {
		t.Errorf("it says\n%s", said)
	}
	if s, err := search(t.Context(), maxLooked); err == nil || s.looked != maxLooked+1 {
		t.Errorf("after %d looks: %v", s.looked-1, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err := search(ctx, 0); !errors.Is(err, context.Canceled) || s.looked != 1 {
		t.Errorf("after Ctrl-C: %d looks, %v", s.looked, err)
	}
}

// TestAFolderThatCannotBeReadIsPassedOver: the data of a database, for example. It is in no copy.
func TestAFolderThatCannotBeReadIsPassedOver(t *testing.T) {
	dir := inFolder(t, map[string]string{"a/x": "", "data/x": "", "sub/.claude/settings.json": "{}"})
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chmod(filepath.Join(dir, "data"), 0)); err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		if _, err := unix.SetfsuidRetUid(1); err != nil {
			t.Error(err)
		}
		o := &presetOptions{preset: findPreset("claude")}
		if _, err := o.obeyed(t.Context(), dir); err == nil {
			t.Error("of a folder that is mounted nobody knows what is in it")
		}
		o.workspace = dir
		if q, err := o.obeyed(t.Context(), dir); err != nil || len(q.Requests) != 1 {
			t.Errorf("the question is %+v, %v", q, err)
		}
	})
	work.Wait()
}
