package reconcile

import (
	"fmt"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

// restTrouble describes a problem of a sandbox that the loop cannot solve. unlinked says
// why its supervisor cannot be linked, logs why it cannot write logs; both may be nil.
// network says what is wrong with its network, or is empty.
func restTrouble(o machine.Observation, unlinked, logs error, network string) string {
	switch {
	case o.Primary != nil && o.Primary.State == runtime.StatePaused:
		return "The primary container is paused; unpause it with the engine's own tools."
	case o.Stray:
		return "The engine does not have the primary container, but its processes run on, and commands work. They end when the sandbox is stopped or removed."
	case o.ConnectFailed && unlinked != nil:
		return unlinked.Error()
	case o.ConnectFailed:
		return "The supervisor cannot be reached; if it lasts, stop and start the sandbox."
	case logs != nil:
		return logs.Error()
	}
	return network
}

// networkTrouble describes a change of the network of a running primary. Commands still
// run, and the change is not undone, because a user may have disconnected a sandbox on
// purpose.
func networkTrouble(inv runtime.Inventory, primary *runtime.Container) string {
	switch {
	case primary == nil || primary.State != runtime.StateRunning:
		return ""
	case len(inv.Networks) == 0:
		return fmt.Sprintf("The network of the sandbox was removed outside agbox; commands still run in it. "+
			"To have a network again, save what you need, remove the sandbox with \"agbox rm %s\" and create it again.", primary.SandboxID)
	case primary.Detached:
		return fmt.Sprintf("The primary container was detached from its network outside agbox; commands still run in it. "+
			"To attach it again: docker network connect %s %s", inv.Networks[0].Name, primary.Name)
	}
	return ""
}
