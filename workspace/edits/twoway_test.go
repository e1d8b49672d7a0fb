package edits

import (
	"path/filepath"
	"testing"
)

func TestPushesAreKnownUntilTheBaseHasThem(t *testing.T) {
	file := filepath.Join(t.TempDir(), "folders", "pushes")
	p, err := LoadPushes(file)
	if err != nil {
		t.Fatal(err)
	}
	base := tree{"a": "1", "d/gone": "g", "link": "was a file", "same": "s"}
	note := func(theirs tree) {
		t.Helper()
		err := p.Note(differences(t, base, theirs), func() string { return "temp" })
		if err != nil {
			t.Fatal(err)
		}
	}
	note(tree{"a": "2", "link": "l:x", "same": "s"})
	note(tree{"a": "3", "link": "l:x", "same": "s", "d/gone": "g"})
	if p, err = LoadPushes(file); err != nil {
		t.Fatal(err)
	}
	// One of the earlier versions has arrived, one file is on its way, and one is of the sandbox.
	sandbox, landed, left := p.Sort(differences(t, base, tree{"a": "2", "d/temp": "g", "temp": "changed", "same": "of the sandbox"}))
	if len(sandbox) != 2 || sandbox[0].Path != "same" || sandbox[1].Path != "temp" || len(landed) != 3 {
		t.Errorf("of the sandbox %+v, pushed %+v", sandbox, landed)
	}
	if len(left) != 2 || left[0] != (Left{"d/gone", "d/temp", true}) || left[1] != (Left{"link", "temp", false}) {
		t.Errorf("left %+v", left)
	}
	if err := p.Keep(sandbox); err != nil {
		t.Fatal(err)
	}
	if p, err = LoadPushes(file); err != nil || len(p.files) != 0 {
		t.Errorf("%v is left, %v", p.files, err)
	}
}
