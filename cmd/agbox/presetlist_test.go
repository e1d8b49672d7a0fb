package main

import (
	"regexp"
	"strings"
	"testing"
)

func TestEveryPresetIsCompleteAndPinned(t *testing.T) {
	for _, p := range allPresets() {
		if p.Name == "" || p.Title == "" || p.Command == "" || p.Package == "" || p.ImageEnv == "" {
			t.Errorf("preset %+v", p)
		}
		if !regexp.MustCompile(`^\d+\.\d+\.\d+$`).MatchString(p.Version) {
			t.Errorf("%s has the version %q", p.Name, p.Version)
		}
		if found := findPreset(p.Name); found == nil || found.Package != p.Package {
			t.Errorf("Find(%q) is %+v", p.Name, found)
		}
	}
	if findPreset("frob") != nil {
		t.Error("any name is a preset")
	}
}

func TestTheDockerfileHasEachArgumentOnce(t *testing.T) {
	args := allPresets()[0].BuildArgs("debian", 1000)
	for name := range args {
		if n := strings.Count(string(presetDockerfile), "\nARG "+name+"\n"); n != 1 {
			t.Errorf("ARG %s is there %d times", name, n)
		}
	}
	if n := strings.Count(string(presetDockerfile), "\nARG "); n != len(args) {
		t.Errorf("%d arguments are declared, and %d given", n, len(args))
	}
}

func TestTheImageIsNamedByWhatItIsMadeFrom(t *testing.T) {
	p := *findPreset("claude")
	seen := map[string]string{}
	other := p
	other.Version = "9.9.9"
	for what, image := range map[string]string{
		"it": p.Image("a", 1), "another base": p.Image("b", 1), "another user": p.Image("a", 2), "another version": other.Image("a", 1),
	} {
		if !regexp.MustCompile(`^agbox/preset-claude:[0-9a-f]{12}$`).MatchString(image) {
			t.Errorf("%s is %s", what, image)
		}
		if seen[image] != "" {
			t.Errorf("%s and %s are both %s", what, seen[image], image)
		}
		seen[image] = what
	}
	if again := findPreset("claude").Image("a", 1); seen[again] == "" {
		t.Error("the name changes")
	}
}

func TestARecipeNeedsNoArguments(t *testing.T) {
	recipe := findPreset("codex").Recipe("debian:12", 1234)
	for _, line := range []string{"ARG BASE=debian:12\n", "ARG UID=1234\n", "ARG PACKAGE=@openai/codex\n", "ARG VERSION=0.169.0\n"} {
		if !strings.Contains(recipe, line) {
			t.Errorf("%q is not in\n%s", line, recipe)
		}
	}
}
