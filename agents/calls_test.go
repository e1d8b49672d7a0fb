package agents

import (
	"maps"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The figures are those of the requirements.
func TestTheDefaultsOfCalls(t *testing.T) {
	got := RulesOf(nil).Calls
	if got.Connect != 30*time.Second || got.Response != 120*time.Second || got.LLMTotal != 300*time.Second || got.LLMChunk != 60*time.Second || got.Tool != time.Minute {
		t.Errorf("%+v", got)
	}
	want := map[string]int{
		"kubectl_apply": 30, "kubectl_get": 15, "file_read": 10, "file_write": 10, "browser_navigate": 120, "browser_screenshot": 30,
		"http_request": 120, "git_clone": 300, "git_push": 60,
	}
	seconds := make(map[string]int)
	for name, d := range got.Tools {
		seconds[name] = int(d.Seconds())
	}
	if !maps.Equal(seconds, want) {
		t.Errorf("tools: %v; want %v", seconds, want)
	}
	own := RulesOf(&agboxv1.AgentSpec{Calls: &agboxv1.AgentCalls{
		Tool: durationpb.New(0), Tools: map[string]*durationpb.Duration{"git_clone": durationpb.New(time.Hour), "mine": durationpb.New(time.Second)},
	}}).Calls
	if own.Tool != 0 || own.Tools["git_clone"] != time.Hour || own.Tools["mine"] != time.Second || own.Tools["git_push"] != time.Minute {
		t.Errorf("own figures: %+v", own)
	}
}
