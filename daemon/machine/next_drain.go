package machine

import "time"

// drains reports whether a stop or removal waits for incarnations of agents to end. They end
// by themselves: their supervisor keeps to the times of the drain. Those in a container that
// is paused, or whose supervisor does not answer, are not waited for.
func drains(r Record, o Observation, now time.Time) bool {
	return running(o.Primary) && !paused(o.Primary) && !o.ConnectFailed &&
		!r.Now && r.StopReason == "" && now.Before(o.DrainUntil)
}

// nextDrained waits for incarnations. Without a link nobody asks them to end, or hears that
// they have.
func nextDrained(o Observation) Step {
	if !o.Connected {
		return Step{Do: Connect, Why: "agents in it save their work before its end"}
	}
	return Step{Wake: o.DrainUntil}
}
