#!/usr/bin/env bash
# Shows an agent that loses nothing, on a real engine: a robot of 20 steps goes on while its program, the daemon, both and
# its container are killed. Each step has one effect, a line in a file on the host. Prints every command before it runs.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/demo.sh
. "$(dirname "$0")/lib/demo.sh"

steps=20
work=$AGBOX_HOME/work
finished=no

main() {
	trap clean_up EXIT
	trap 'exit 130' INT TERM
	mkdir -m 777 "$work"
	(cd "$repo_root" && CGO_ENABLED=0 go build -o "$work/robot" ./e2e/internal/robot/program)
	describe
	run agbox daemon start

	title "An agent, as its file describes it; stdout has only its id"
	show agbox agent spawn --trust -f "$work/agbox.yaml"
	agent=$(agbox agent spawn --trust -f "$work/agbox.yaml")
	echo "$agent"
	wait_for_effects 4
	sandbox=$(agbox agent inspect "$agent" -o json | sed -n 's/.*"sandbox_id": *"\([^"]*\)".*/\1/p')

	title "SIGKILL of its program"
	run agbox exec "$sandbox" -- killall -9 robot
	wait_for_effects 8
	kill_daemon "SIGKILL of agboxd"
	run agbox daemon start
	wait_for_effects 12
	run agbox exec -d "$sandbox" -- sh -c 'sleep 0.5; killall -9 robot'
	kill_daemon "SIGKILL of agboxd, and half a second later of the program"
	sleep 1
	run agbox daemon start
	wait_for_effects 16

	title "SIGKILL of its container, as 'docker kill' does"
	run "$engine_tool" kill "$sandbox"

	title "It completes"
	run timeout 90 agbox agent wait "$agent"
	run agbox agent inspect "$agent"
	run agbox agent logs "$agent"
	show_history
	title "What its last incarnation reported: the journal"
	run agbox agent journal "$agent" -n "$(agbox agent inspect "$agent" -o json | sed -n 's/.*"incarnation": *\([0-9][0-9]*\).*/\1/p' | head -n 1)"
	title "Its newest checkpoints"
	run agbox agent checkpoints "$agent"
	check_effects

	title "A clean removal"
	run agbox agent rm "$agent"
	wait_until_removed
	run agbox daemon stop
	check_nothing_left
	finished=yes
}

describe() {
	cat >"$work/agbox.yaml" <<-YAML
		image: $image
		mounts:
		  - {source: ., target: /robot, writable: true}
		agent:
		  name: robot
		  command: [/robot/robot, -steps, "$steps", -pace, 250ms, -checkpoint, "1000"]
		  retry: {delays: [1s], oom: 5}     # SIGKILL that agbox did not send counts as lack of memory
	YAML
	title "The file of the agent: $work/agbox.yaml"
	cat "$work/agbox.yaml"
}

effects() { cat "$work/$agent.effects" 2>/dev/null || true; }

wait_for_effects() {
	local deadline=$((SECONDS + 60))
	until (($(effects | wc -l) >= $1)); do
		((SECONDS < deadline)) || die "effect $1 did not come within 60 seconds"
		sleep 0.05
	done
	echo "($(effects | wc -l) effects)"
}

kill_daemon() {
	local pid
	title "$1"
	pid=$(daemon_pid)
	run kill -9 "$pid"
	wait_for_end "$pid"
}

show_history() {
	title "What happened to it"
	show agbox agent events "$agent"
	agbox agent events "$agent" |
		sed -n 's/.*"type":"AGENT_\([A-Z_]*\)".*"state":"\([A-Z_]*\)".*"position":[0-9]*,"incarnation":\([0-9]*\).*/\1 \2 \3/p' |
		awk '{printf "  %-20s %-12s incarnation %s\n", $1, $2, $3}'
}

check_effects() {
	local i
	for ((i = 1; i <= steps; i++)); do echo "$agent/$i"; done | diff - <(effects) ||
		die "the effects are not those of steps 1 to $steps, each once and in order"
	echo "Checked: $steps effects, each once and in order."
}

wait_until_removed() {
	local deadline=$((SECONDS + 30))
	while [[ -n $(agbox ls -q) ]]; do
		((SECONDS < deadline)) || die "the sandbox of the agent was not removed within 30 seconds"
		sleep 0.05
	done
}

# Removes everything that the demo started, also after a failure or Ctrl-C.
clean_up() {
	local code=$?
	trap - EXIT
	set +e
	if [[ $finished != yes ]]; then
		echo "The demo did not finish; cleaning up." >&2
		[[ -z $sandbox ]] || agbox rm -f "$sandbox" >/dev/null 2>&1
		agbox daemon stop >/dev/null 2>&1
		[[ -z $sandbox ]] || "$engine_tool" remove "$sandbox" >&2
		((code)) || code=1
	fi
	rm -rf "$AGBOX_HOME" || echo "Could not remove $AGBOX_HOME." >&2
	say_what_remains
	exit "$code"
}

main
