# Shared by the scripts: messages, root rights, the engine tool. Sourced, never run.
# shellcheck shell=bash

repo_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build_dir=$repo_root/.build
engine_tool=$build_dir/engine

# If setup started the engine, this file has the command that stops it. A reboot removes the file.
# shellcheck disable=SC2034
started_engine_file=/run/agbox-setup-engine

say() { printf '%s: %s\n' "$(basename "$0" .sh)" "$*" >&2; }

die() {
	say "$*"
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

is_root() { [[ $(id -u) -eq 0 ]]; }

# can_be_root does not prompt without a terminal; there it accepts only a sudo without a password.
can_be_root() {
	is_root && return 0
	have sudo || return 1
	[[ -t 0 ]] || sudo -n true 2>/dev/null
}

as_root() {
	if is_root; then
		"$@"
	else
		sudo -- "$@"
	fi
}

# The engine tool needs only the Go standard library, so it works before anything else is installed.
build_engine_tool() {
	mkdir -p "$build_dir"
	(cd "$repo_root" && CGO_ENABLED=0 go build -o "$engine_tool" ./scripts/engine)
}

# static_busybox prints the path of a statically linked busybox, which can be the only program of an image.
static_busybox() {
	local path
	path=$(command -v busybox) || return 1
	path=$(readlink -f "$path")
	# ldd fails for a statically linked program.
	! ldd "$path" >/dev/null 2>&1 && echo "$path"
}
