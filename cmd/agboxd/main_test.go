package main

import (
	"strings"
	"testing"
)

func TestHelpFitsInAHundredColumns(t *testing.T) {
	for _, name := range []string{"", "run", "config", "doctor"} {
		var out strings.Builder
		root := command(new(bool))
		root.SetOut(&out)
		root.SetArgs(append(strings.Fields(name), "--help"))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), "Flags:") {
			t.Errorf("agboxd %s has no help: %s", name, out.String())
		}
		for line := range strings.Lines(out.String()) {
			if len(line) > 100 {
				t.Errorf("agboxd %s: %s", name, line)
			}
		}
	}
}
