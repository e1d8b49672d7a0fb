package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
)

// runHook runs the exec of a hook in a shell in the primary.
func (l *Loop) runHook(ctx context.Context, sb ledger.Sandbox, hook machine.Hook) error {
	commands := sb.Spec.GetPostCreate()
	if hook.Service != "" {
		commands = serviceSpec(sb, hook.Service).GetPostStartOnPrimary()
	}
	return l.execs.RunHook(ctx, &agboxv1.CreateExecRequest{
		SandboxId: sb.ID, ExecId: hookExecID(sb, hook), Command: []string{"sh", "-c", commands[hook.Index]},
		// A hook in what a program has copied has no more rights than that program.
		User: sb.Spec.GetDerived().GetUser(),
	}, hook)
}

// hookExecID derives the exec id of a hook. A daemon that crashed between two steps
// derives the same id again, and an exec id is run at most once.
func hookExecID(sb ledger.Sandbox, hook machine.Hook) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s\x00%d\x00%d", sb.ID, sb.Nonce, hook.Service, hook.Start, hook.Index))
	mark := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:10]))
	if hook.Service == "" {
		return fmt.Sprintf("post-create-%d-%s", hook.Index+1, mark)
	}
	return fmt.Sprintf("hook-%s-%d-%d-%s", hook.Service[:min(len(hook.Service), 20)], hook.Start, hook.Index+1, mark)
}

// watchHooks enqueues the sandbox when a hook has ended.
func (l *Loop) watchHooks(w *sandboxWork, sb ledger.Sandbox) {
	for id, exec := range sb.Execs {
		if exec.Hook == nil || w.hooks[id] {
			continue
		}
		if w.hooks == nil {
			w.hooks = make(map[string]bool)
		}
		w.hooks[id] = true
		l.mu.Lock()
		life := l.ctx
		l.mu.Unlock()
		l.wg.Go(func() {
			select {
			case <-l.ledger.ExecDone(id):
				l.Enqueue(w.id)
			case <-life.Done():
			}
		})
	}
}
