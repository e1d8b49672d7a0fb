# Shared by the demos: an install of their own, titles, commands that are shown before they run. Sourced, never run.
# shellcheck shell=bash
# shellcheck source=scripts/lib/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

PATH=$repo_root/bin:$PATH
# A separate install, so that a demo touches no other. The path is short because a socket's path is limited to 107 bytes.
AGBOX_HOME=$(mktemp -d /tmp/agbox-demo.XXXXXX)
export AGBOX_HOME

image=agbox/base:latest
sandbox=""

daemon_pid() { agbox daemon status -o json | sed -n 's/.*"pid": *"\{0,1\}\([0-9][0-9]*\).*/\1/p'; }

# A process in state Z has ended, although its parent has not reaped it yet.
wait_for_end() {
	local deadline=$((SECONDS + 10))
	while [[ $(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null) == [!Z] ]]; do
		((SECONDS < deadline)) || die "process $1 did not end within 10 seconds"
		sleep 0.05
	done
}

check_nothing_left() {
	local left
	left=$("$engine_tool" find "$sandbox")
	[[ -z $left ]] || die "left behind: $left"
	echo "Checked: no container and no network of sandbox $sandbox is left."
}

say_what_remains() {
	local stop pid
	title "What remains"
	echo "The image $image and the binaries in bin/."
	stop=$(cat "$started_engine_file" 2>/dev/null) || return
	pid=${stop#kill }
	if [[ $stop != "$pid" && $(cat "/proc/$pid/comm" 2>/dev/null) != dockerd ]]; then return; fi
	echo "The Docker engine that 'make setup' started; to stop it, as root: $stop"
}

title() { printf '\n# %s\n' "$*"; }

# show prints a command as a user would type it.
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
