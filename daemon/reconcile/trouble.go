package reconcile

import (
	"fmt"

	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/runtime"
)

// restTrouble names what is wrong with a sandbox that nothing can be done about
// from here. fault is why its supervisor cannot be trusted, network what is wrong
// with its network; both are empty if nothing is.
func restTrouble(o machine.Observation, fault, network string) string {
	switch {
	case o.Primary != nil && o.Primary.State == runtime.StatePaused:
		return "The primary container is paused; unpause it with the engine's own tools."
	case o.ConnectFailed && fault != "":
		return fault
	case o.ConnectFailed:
		return "The supervisor cannot be reached; if it lasts, stop and start the sandbox."
	}
	return network
}

// networkTrouble says what somebody did to the network of a running primary.
// Commands run all the same, and what is not ours to undo is not undone: a user
// may have cut a sandbox off on purpose.
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
