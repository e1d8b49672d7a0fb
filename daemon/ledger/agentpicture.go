package ledger

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/agents"
	"github.com/agbox/agbox/store"
)

// Picture returns how the surroundings of an agent are now; nil if its sandbox is gone.
func (l *Ledger) Picture(a Agent) *agboxv1.AgentPicture {
	sb, living := l.Sandbox(a.SandboxID)
	return picture(sb, living)
}

// picture is Picture within a transaction.
func (t *agentTxn) picture() *agboxv1.AgentPicture {
	sb, living := t.l.sandboxIn(t.tx, t.a.SandboxID)
	p := picture(sb, living)
	if p != nil {
		p.Leases = agents.Leases(t.a.Holds)
	}
	return p
}

// sandboxIn returns a sandbox as the batch has it so far.
func (l *Ledger) sandboxIn(tx *store.Tx, id string) (Sandbox, bool) {
	if sb, ok := tx.Value(overlay{id}).(Sandbox); ok {
		return sb, true
	}
	return l.Sandbox(id)
}

func picture(sb Sandbox, living bool) *agboxv1.AgentPicture {
	if !living || !sb.Exists() {
		return nil
	}
	p := &agboxv1.AgentPicture{
		SandboxId: sb.ID, ReadyAt: timestamppb.New(sb.ReadyAt), Image: sb.Spec.GetImage(),
		Services: make(map[string]uint32), Limits: make(map[string]string),
	}
	for name, s := range sb.Services {
		p.Services[name] = s.Start
	}
	for name, value := range map[string]string{
		"cpu_limit": sb.Spec.GetCpuLimit(), "memory_limit": sb.Spec.GetMemoryLimit(), "disk_limit": sb.Spec.GetDiskLimit(),
	} {
		if value != "" {
			p.Limits[name] = value
		}
	}
	return p
}
