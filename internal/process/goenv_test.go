package process

import (
	"slices"
	"testing"
)

func TestOnlyTheVariablesOfTheRuntimeAreTakenOut(t *testing.T) {
	rest, own := SplitGoVariables([]string{"A=GOGC=1", "GOGC=1", "GOGCX=2", "GODEBUG=", "GOPATH=/go", "GOMEMLIMIT"})
	if !slices.Equal(rest, []string{"A=GOGC=1", "GOGCX=2", "GOPATH=/go"}) || !slices.Equal(own, []string{"GOGC=1", "GODEBUG=", "GOMEMLIMIT"}) {
		t.Errorf("Split gives %v and %v", rest, own)
	}
	if rest, own := SplitGoVariables(SupervisorGoVariables()); len(rest) > 0 || len(own) != len(GoVariables) {
		t.Errorf("of the blank ones it takes %v and leaves %v", own, rest)
	}
}
