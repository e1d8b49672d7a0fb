package supervisor

import (
	"bytes"
	"io"
	"testing"
)

// endless is the environment of a process that uses prctl(PR_SET_MM_MAP), which needs no
// privilege, to declare a terabyte of zeros as its environment.
type endless struct{ given int }

func (e *endless) Read(p []byte) (int, error) {
	if e.given > 8*maxEnvironment {
		return 0, io.EOF
	}
	clear(p)
	e.given += len(p)
	return len(p), nil
}

func TestTheEnvironmentOfAHostileProcessIsReadInBounds(t *testing.T) {
	if e := new(endless); hasEntry(e, "A=b") || e.given > 2*maxEnvironment {
		t.Errorf("%d bytes were read", e.given)
	}
}

func TestAnEntryIsFoundWhereverItStands(t *testing.T) {
	other := append(bytes.Repeat([]byte("x"), 3*environmentPiece/2), 0)
	for name, c := range map[string]struct {
		environ []byte
		want    bool
	}{
		"alone":                 {[]byte("A=b"), true},
		"with its end":          {[]byte("A=b\x00"), true},
		"first":                 {append([]byte("A=b\x00"), other...), true},
		"last":                  {append(bytes.Clone(other), "A=b\x00"...), true},
		"across two pieces":     {append(bytes.Repeat([]byte{0}, environmentPiece-2), "A=b\x00"...), true},
		"longer":                {[]byte("A=bc\x00"), false},
		"end of another":        {[]byte("AA=b\x00"), false},
		"end of a long one":     {append(bytes.Repeat([]byte("x"), environmentPiece-1), "A=b\x00"...), false},
		"end of a longer one":   {append(bytes.Repeat([]byte("x"), environmentPiece), "A=b\x00"...), false},
		"not there":             {other, false},
		"of nothing":            {nil, false},
		"after the environment": {append(bytes.Repeat([]byte{0}, maxEnvironment), "A=b\x00"...), false},
	} {
		if got := hasEntry(bytes.NewReader(c.environ), "A=b"); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
