package incarnations

import (
	"context"
	"slices"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// FuzzRequests has a hostile supervisor send any fields of any op. Each is answered or waits;
// nothing fails the round of the agent, and only its own tree changes.
func FuzzRequests(f *testing.F) {
	for op, body := range map[string]string{
		"spawn": `{"command":["x"],"name":"n","key":"k","envs":{"A":"b"},"budget":{"input_tokens":1,"cost_usd":"0.1"},"stack":{"name":"s"},"after":["n"],"work":""}`,
		"wait":  `{"agents":["n"],"any":true}`, "kill": `{"agent":"n","mode":"now"}`, "children": `{}`,
		"acquire": `{"manifest":[{"resource":"file:/x","mode":"shared"}],"wait":true}`, "release": `{"resources":["file:/x"]}`,
		"recv": `{"after":1}`, "open": `{"stream":"news"}`, "close": `{"stream":"news"}`, "pause": `{"reason":"idle"}`, "resumed": `{"result":"ok","observation":1}`,
		"dance": `[]`,
	} {
		f.Add(op, []byte(body))
	}
	r := asking(f, &agboxv1.AgentSpec{MaySpawn: &agboxv1.AgentMaySpawn{Depth: 8, Children: 4}})
	var number uint64
	f.Fuzz(func(t *testing.T, op string, body []byte) {
		number++
		r.to.sent = nil
		r.ask(r.link, &guestv1.AgentRequest{Number: number, Op: op, Json: body})
		if err := r.Answer(context.Background(), r.agent()); err != nil {
			t.Fatalf("%s %q: %v", op, body, err)
		}
		for _, a := range r.to.sent {
			if a.GetCode() != "" && a.GetMessage() == "" || a.GetCode() == "INTERNAL_ERROR" {
				t.Fatalf("%s %q: the answer is %v", op, body, a)
			}
		}
		for _, a := range r.Ledger.Agents(nil) {
			if a.ID != "x" && a.ID != "init" && (a.SandboxID != "a" || !slices.Contains([]string{"x", "init"}, a.Parent)) {
				t.Fatalf("%s %q made %+v", op, body, a.Record)
			}
		}
	})
}
