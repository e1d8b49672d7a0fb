package faults

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// faultList returns the faults of FAULTS.md by number, with the text about their tests.
func faultList() (map[int]string, error) {
	raw, err := os.ReadFile(filepath.Join("..", "FAULTS.md"))
	if err != nil {
		return nil, err
	}
	faults := make(map[int]string)
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		if n, err := strconv.Atoi(strings.TrimSpace(cells[1])); err == nil {
			faults[n] = cells[3]
		}
	}
	return faults, nil
}

// faultCount is the number of faults in the list.
const faultCount = 48

// impossible begins the text of a fault without a test.
const impossible = " Cannot be made here: "

func TestTheListOfFaultsIsTrue(t *testing.T) {
	faults, err := faultList()
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, pattern := range []string{"*_test.go", "../*_test.go", "../../daemon/server/*_test.go", "../../daemon/admission/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(raw)
		}
	}
	names := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	for n := 1; n <= faultCount; n++ {
		tests := names.FindAllStringSubmatch(faults[n], -1)
		if len(tests) == 0 && !strings.HasPrefix(faults[n], impossible) {
			t.Errorf("fault %d has neither a test nor a reason: %q", n, faults[n])
		}
		for _, test := range tests {
			if !strings.Contains(code.String(), "func "+test[1]+"(") {
				t.Errorf("fault %d names %s, which is no test", n, test[1])
			}
		}
	}
}

// missing returns the faults with a test that a complete run did not inject.
func missing() (numbers []string) {
	if only := flag.Lookup("test.run"); only != nil && only.Value.String() != "" {
		return nil // only some tests were run
	}
	faults, err := faultList()
	if err != nil {
		return []string{err.Error()}
	}
	made := make(map[int]bool)
	table.mu.Lock()
	defer table.mu.Unlock()
	for _, r := range table.rows {
		made[r.number] = true
	}
	for n := 1; n <= faultCount; n++ {
		if !made[n] && !strings.HasPrefix(faults[n], impossible) {
			numbers = append(numbers, fmt.Sprint(n))
		}
	}
	return numbers
}
