#!/usr/bin/env bash
# Shows the main features on a real engine: a sandbox, an exec with its output and exit code, a log that is followed
# across a crash of the daemon, a clean removal. Prints every command before it runs, followed by its output.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/demo.sh
. "$(dirname "$0")/lib/demo.sh"

lines=20
received=$AGBOX_HOME/received
follower=""
finished=no

main() {
	trap clean_up EXIT
	trap 'exit 130' INT TERM

	title "A daemon with its own data directory: AGBOX_HOME=$AGBOX_HOME"
	run agbox daemon start

	title "A sandbox; stdout has only its id"
	show agbox create demo --image "$image"
	sandbox=$(agbox create demo --image "$image")
	echo "$sandbox"

	title "A command in it: stdout, stderr, and its exit code"
	# shellcheck disable=SC2016 # for the sandbox's shell
	run_for_code 7 agbox exec demo -- sh -c 'echo "I am $(id -un) on $(hostname), pid $$"; echo "this is stderr" >&2; exit 7'

	title "A detached command: one line every 0.3 s, then exit code 3"
	# shellcheck disable=SC2016 # for the sandbox's shell
	local job='for i in $(seq 1 '$lines'); do echo "line $i"; sleep 0.3; done; exit 3'
	show agbox exec -d demo -- sh -c "$job"
	exec_id=$(agbox exec -d demo -- sh -c "$job")
	echo "$exec_id"

	follow_across_a_crash
	check_lines

	title "The state now; the exit code of the second command is known too"
	run agbox ps -a demo
	check_exit_code 3
	run agbox ls

	title "A clean removal"
	run agbox rm demo
	run agbox daemon stop
	check_nothing_left
	finished=yes
}

follow_across_a_crash() {
	title "Follow its log while the daemon is killed and started again ('|' marks the follower's output)"
	show agbox logs -f "$exec_id"
	local printer old new code=0
	mkfifo "$received.pipe"
	tee "$received" <"$received.pipe" | sed -u 's/^/    | /' &
	printer=$!
	timeout 60 agbox logs -f "$exec_id" >"$received.pipe" & # the timeout matters only if the demo fails
	follower=$!
	wait_for_line 5
	old=$(daemon_pid)
	run kill -9 "$old"
	wait_for_end "$old"
	run agbox daemon start
	new=$(daemon_pid)
	echo "The daemon's pid was $old and is now $new; the follower continues."
	[[ $new != "$old" ]] || die "the daemon was not replaced"
	wait "$follower" || code=$?
	follower=""
	((code != 124)) || die "the follower did not end within 60 seconds"
	wait "$printer"
	echo "(agbox logs ended with exit code $code)"
}

wait_for_line() {
	local deadline=$((SECONDS + 20))
	until grep -qsx "line $1" "$received"; do
		((SECONDS < deadline)) || die "line $1 did not arrive within 20 seconds"
		sleep 0.05
	done
}

check_lines() {
	local i
	for ((i = 1; i <= lines; i++)); do echo "line $i"; done | diff - "$received" ||
		die "the follower's lines are not 1 to $lines, each once and in order"
	echo "Checked: all $lines lines arrived, each once and in order."
}

check_exit_code() {
	local code
	code=$(agbox inspect "$exec_id" -o json | sed -n 's/.*"exit_code": *\([0-9][0-9]*\).*/\1/p')
	[[ $code == "$1" ]] || die "the exit code should be $1 and is '$code'"
	echo "Checked: exit code $code."
}

# Removes everything that the demo started, also after a failure or Ctrl-C.
clean_up() {
	local code=$?
	trap - EXIT
	set +e
	if [[ $finished != yes ]]; then
		echo "The demo did not finish; cleaning up." >&2
		agbox rm -f demo >/dev/null 2>&1
		agbox daemon stop >/dev/null 2>&1
		[[ -z $follower ]] || kill "$follower" 2>/dev/null
		[[ -z $sandbox ]] || "$engine_tool" remove "$sandbox" >&2
		((code)) || code=1
	fi
	rm -rf "$AGBOX_HOME" || echo "Could not remove $AGBOX_HOME." >&2
	say_what_remains
	exit "$code"
}

main
