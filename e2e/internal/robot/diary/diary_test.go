package diary

import (
	"os"
	"testing"
)

// TestWhoeverAppendsCutsATornLine: a writer was killed within its line, and the next one writes on.
func TestWhoeverAppendsCutsATornLine(t *testing.T) {
	path := Name(t.TempDir(), "a")
	if err := os.WriteFile(path, []byte("{\"n\":1,\"what\":\"begin\"}\n{\"n\":1,\"what\":\"bro"), 0o666); err != nil {
		t.Fatal(err)
	}
	for n := uint32(2); n <= 3; n++ { // 3 finds nothing to cut
		file, err := Append(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := file.WriteString("{\"n\":2,\"what\":\"begin\"}\n"); err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		entries, err := Read(path)
		if err != nil || len(entries) != int(n) || entries[0].Incarnation != 1 || entries[n-1].Incarnation != 2 {
			t.Fatalf("the diary has %v: %v", entries, err)
		}
	}
}
