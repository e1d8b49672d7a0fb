#!/usr/bin/env bash
# The main job on a real engine: a sandbox, an exec with its output and exit code, a log that is followed across
# the daemon's death, a clean removal. Every command is printed before it runs; what follows is its own output.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"

PATH=$repo_root/bin:$PATH
# An install of its own, so that the demo touches no other. A socket's path has room for about 100 bytes.
AGBOX_HOME=$(mktemp -d /tmp/agbox-demo.XXXXXX)
export AGBOX_HOME

image=agbox/base:latest
lines=20
received=$AGBOX_HOME/received
sandbox=""
follower=""
finished=no

main() {
	trap clean_up EXIT
	trap 'exit 130' INT TERM

	title "A daemon with a data directory of its own: AGBOX_HOME=$AGBOX_HOME"
	run agbox daemon start

	title "A sandbox; its id alone is on stdout"
	show agbox create demo --image "$image"
	sandbox=$(agbox create demo --image "$image")
	echo "$sandbox"

	title "A command in it: both outputs, and its own exit code"
	# shellcheck disable=SC2016 # for the sandbox's shell
	run_for_code 7 agbox exec demo -- sh -c 'echo "I am $(id -un) on $(hostname), pid $$"; echo "this is stderr" >&2; exit 7'

	title "A command that runs by itself: one line every 0.3 s, then exit code 3"
	# shellcheck disable=SC2016 # for the sandbox's shell
	local job='for i in $(seq 1 '$lines'); do echo "line $i"; sleep 0.3; done; exit 3'
	show agbox exec -d demo -- sh -c "$job"
	exec_id=$(agbox exec -d demo -- sh -c "$job")
	echo "$exec_id"

	follow_across_a_crash
	check_lines

	title "What there is now; the second command's own exit code is known too"
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
	title "Its log is followed ('|' marks the follower's output) while the daemon is killed and started again under it"
	show agbox logs -f "$exec_id"
	local printer old new code=0
	mkfifo "$received.pipe"
	tee "$received" <"$received.pipe" | sed -u 's/^/    | /' &
	printer=$!
	timeout 60 agbox logs -f "$exec_id" >"$received.pipe" & # the bound is for a demo that has gone wrong
	follower=$!
	wait_for_line 5
	old=$(daemon_pid)
	run kill -9 "$old"
	wait_for_end "$old"
	run agbox daemon start
	new=$(daemon_pid)
	echo "The daemon's pid was $old and is $new; the follower goes on."
	[[ $new != "$old" ]] || die "the daemon was not replaced"
	wait "$follower" || code=$?
	follower=""
	((code != 124)) || die "the follower did not end within 60 seconds"
	wait "$printer"
	echo "(agbox logs ended with exit code $code)"
}

daemon_pid() { agbox daemon status -o json | sed -n 's/.*"pid": *"\{0,1\}\([0-9][0-9]*\).*/\1/p'; }

wait_for_line() {
	local deadline=$((SECONDS + 20))
	until grep -qsx "line $1" "$received"; do
		((SECONDS < deadline)) || die "line $1 did not arrive within 20 seconds"
		sleep 0.05
	done
}

# A process that nobody has reaped yet, state Z, has ended.
wait_for_end() {
	local deadline=$((SECONDS + 10))
	while [[ $(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) == [!Z] ]]; do
		((SECONDS < deadline)) || die "process $1 did not end within 10 seconds"
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

check_nothing_left() {
	local left
	left=$("$engine_tool" find "$sandbox")
	[[ -z $left ]] || die "left behind: $left"
	echo "Checked: no container and no network of sandbox $sandbox is left."
}

# Also after a failure or Ctrl-C nothing that the demo started may stay.
clean_up() {
	local code=$?
	trap - EXIT
	set +e
	if [[ $finished != yes ]]; then
		echo "The demo did not come to its end; cleaning up." >&2
		agbox rm demo >/dev/null 2>&1
		agbox daemon stop >/dev/null 2>&1
		[[ -z $follower ]] || kill "$follower" 2>/dev/null
		[[ -z $sandbox ]] || "$engine_tool" remove "$sandbox" >&2
		((code)) || code=1
	fi
	rm -rf "$AGBOX_HOME" || echo "$AGBOX_HOME could not be removed." >&2
	say_what_stays
	exit "$code"
}

say_what_stays() {
	local stop pid
	title "What stays"
	echo "The image $image and the binaries in bin/."
	stop=$(cat "$started_engine_file" 2>/dev/null) || return
	pid=${stop#kill }
	if [[ $stop != "$pid" && $(cat "/proc/$pid/comm" 2>/dev/null) != dockerd ]]; then return; fi
	echo "The Docker engine that 'make setup' started; to stop it, as root: $stop"
}

title() { printf '\n# %s\n' "$*"; }

# show prints a command as one would type it.
show() {
	local word text=""
	for word in "$@"; do
		[[ $word =~ ^[A-Za-z0-9_./:=-]+$ ]] || word="'${word//\'/\'\\\'\'}'"
		text+=" $word"
	done
	printf '$%s\n' "$text"
}

run() {
	show "$@"
	"$@"
}

run_for_code() {
	local want=$1 code=0
	shift
	run "$@" || code=$?
	echo "(exit code $code)"
	((code == want)) || die "the exit code should be $want"
}

main
