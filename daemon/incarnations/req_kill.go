package incarnations

import (
	"cmp"
	"context"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
)

// kill ends a descendant of the agent. The answer does not wait for the end.
func (r *Runner) kill(ctx context.Context, a ledger.Agent, q request) (any, bool, error) {
	var f struct {
		Agent string `json:"agent"`
		// Mode is the name of a KillMode in lower case; terminate if empty.
		Mode string `json:"mode"`
	}
	if err := q.decode(&f); err != nil {
		return nil, false, err
	}
	mode, known := agboxv1.KillMode_value["KILL_MODE_"+strings.ToUpper(cmp.Or(f.Mode, "terminate"))]
	if !known || mode == 0 {
		return nil, false, q.invalid("There is no mode %.32q: leave it out, or give graceful or now.", f.Mode)
	}
	if err := mayAct(a, q.op); err != nil {
		return nil, false, err
	}
	target, err := r.descendant(a, f.Agent)
	if err != nil {
		return nil, false, err
	}
	target, err = r.ledger.RequestKill(ctx, target.ID, &agboxv1.AgentKill{Mode: agboxv1.KillMode(mode), By: "agent " + cmp.Or(a.Name, a.ID)})
	if err != nil {
		return nil, false, err
	}
	r.enqueue(target.ID)
	return childOf(target), false, nil
}
