package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestTheProgressOfABuildIsOneLineOnATerminalAndItsStepsElsewhere(t *testing.T) {
	var screen bytes.Buffer
	width := 40
	a := &app{stderr: &screen, width: func() int { return width }}
	b := &buildProgress{shownLine: shownLine{app: a}}
	b.take("Step 1/2 : FROM x\n ---> 12")
	b.take("34\n 10%\r 100%\n\n\x1b[31mbad\n")
	b.clear()
	got := screen.String()
	if lines := strings.Split(got, "\r\x1b[K"); lines[len(lines)-1] != "" || !strings.Contains(got, "building:  ---> 1234") || !strings.Contains(got, "building:  100%") {
		t.Errorf("the terminal got %q", got)
	}
	if strings.Contains(got, "\x1b[31m") {
		t.Errorf("a program of the build controls the terminal: %q", got)
	}
	if strings.Join(b.last[:3], "|") != "Step 1/2 : FROM x| ---> 1234| 100%" {
		t.Errorf("the last lines are %q", b.last)
	}

	screen.Reset()
	width = 0
	b = &buildProgress{shownLine: shownLine{app: a}}
	b.take("Step 1/2 : FROM x\n ---> 1234\n" + strings.Repeat("line\n", 2*buildTail))
	b.clear()
	if screen.String() != "agbox: Step 1/2 : FROM x\n" {
		t.Errorf("a script got %q", screen.String())
	}
	if len(b.last) != buildTail {
		t.Errorf("%d lines are kept", len(b.last))
	}
}

func TestTheBaseOfAPresetComesFromTheFlagThenTheVariable(t *testing.T) {
	env := map[string]string{}
	a := &app{lookupEnv: func(name string) (string, bool) { value, ok := env[name]; return value, ok }}
	if got := a.presetBase(""); got != defaultPresetBase {
		t.Errorf("by default it is %s", got)
	}
	env[presetBaseVariable] = "company/debian"
	if got := a.presetBase(""); got != "company/debian" {
		t.Errorf("with the variable it is %s", got)
	}
	if got := a.presetBase("mine"); got != "mine" {
		t.Errorf("with the flag it is %s", got)
	}
}

func TestTheDocumentOfPresetsIsTrue(t *testing.T) {
	raw, err := os.ReadFile("../../docs/presets.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	listed := func(names []string) string {
		if len(names) == 0 {
			return "-"
		}
		return "`" + strings.Join(names, "`, `") + "`"
	}
	for _, p := range allPresets() {
		row := fmt.Sprintf("| `%s` | `%s` %s | %s | %s |\n", p.Name, p.Package, p.Version, listed(p.Keys), listed(p.Settings))
		if !strings.Contains(text, row) {
			t.Errorf("docs/presets.md lacks the row %s", row)
		}
		if !strings.Contains(text, "`agbox "+p.Name+"`") {
			t.Errorf("docs/presets.md does not begin with agbox %s", p.Name)
		}
	}
	if rows := strings.Count(text, "\n| `"); rows != len(allPresets()) {
		t.Errorf("docs/presets.md has %d rows", rows)
	}
	for _, want := range []string{"`--with " + strings.Join(presetExtras, ",") + "`", "`--with " + noExtras + "`", "`" + presetBaseVariable + "`", "`" + defaultPresetBase + "`"} {
		if !strings.Contains(text, want) {
			t.Errorf("docs/presets.md lacks %s", want)
		}
	}
	root := new(app).rootCommand()
	for _, m := range regexp.MustCompile("(?m)(?:^    |`)agbox ([a-z ]+)").FindAllStringSubmatch(text, -1) {
		words := strings.Fields(m[1])
		if cmd, _, err := root.Find(words); err != nil || cmd == root {
			t.Errorf("docs/presets.md names agbox %s, which does not exist", words[0])
		}
	}
}

// The help of an agent fits a screen, with its own flags first. The others are one command away.
func TestTheHelpOfAPresetFitsAScreen(t *testing.T) {
	_, others, _ := agbox(t, "", "run", "--help")
	for _, p := range allPresets() {
		code, out, _ := agbox(t, "", p.Name, "--help")
		if lines := strings.Count(out, "\n"); code != 0 || lines > 40 {
			t.Errorf("the help of %s has %d lines:\n%s", p.Name, lines, out)
		}
		_, flags, _ := strings.Cut(out, "\nFlags:\n")
		if !strings.HasPrefix(flags, "      --with NAMES") || !strings.Contains(flags, `"agbox run --help"`) {
			t.Errorf("%s: the flags are\n%s", p.Name, flags)
		}
		cmd, _, err := newCLI(t, "").rootCommand().Find([]string{p.Name})
		if err != nil {
			t.Fatal(err)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if name := "--" + f.Name + " "; !strings.Contains(out, name) && !strings.Contains(others, name) {
				t.Errorf("no help has %s of %s", name, p.Name)
			}
		})
	}
}
