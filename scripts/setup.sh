#!/usr/bin/env bash
# Installs and starts what agbox needs and this machine lacks: a C compiler (for Go's race detector), busybox and
# mmdebstrap (for the local images), strace, ip and mkfs.ext4 (for the fault tests), tmux, zsh, fish and
# bash-completion (for the tests of the screen), git-lfs (for the test with its filters), Node.js and npm (for the test with a JavaScript client), a Docker engine.
# Does and prints nothing if nothing is missing.
#
#   scripts/setup.sh            what make demo and make test need
#   scripts/setup.sh PROGRAM... these programs too, each from the Debian package of the same name
set -euo pipefail
# shellcheck source=scripts/lib/dockerd.sh
. "$(dirname "$0")/lib/dockerd.sh"

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin # Debian installs dockerd in a directory that a user's PATH does not have
also=("$@")

main() {
	[[ $(uname -s) == Linux ]] || die "agbox runs on Linux; install Go, a C compiler, busybox and Docker on a Linux machine."
	check_go
	build_engine_tool
	is_complete && return 0
	take_lock
	install_packages
	provide_engine
}

# is_complete reports quickly that nothing is missing, as in every run but the first.
is_complete() { [[ -z $(missing_packages) && $(engine_state) == up ]]; }

check_go() {
	local need got
	need=$(sed -n 's/^go //p' "$repo_root/go.mod")
	have go || die "Go is missing; install Go $need or newer from https://go.dev/dl and put it on the PATH."
	# Ask outside the module: inside it, an old Go would refuse the go line of go.mod instead of answering.
	got=$(cd / && GOTOOLCHAIN=local go env GOVERSION)
	got=${got#go}
	[[ $(printf '%s\n%s\n' "$need" "$got" | sort -V | head -n 1) == "$need" ]] && return 0
	# Since 1.21, Go downloads the toolchain that a module requires, unless that is disabled.
	(cd "$repo_root" && go list -m) >/dev/null 2>&1 ||
		die "Go $got is too old; install Go $need or newer from https://go.dev/dl."
}

# missing_packages prints the Debian packages with the programs that are missing on this machine.
missing_packages() {
	printf '#include <stdlib.h>\nint main(void) { return 0; }\n' |
		"${CC:-gcc}" -x c -o /dev/null - 2>/dev/null || printf '%s\n' gcc libc6-dev
	static_busybox >/dev/null || echo busybox-static
	have mmdebstrap || echo mmdebstrap
	have strace || echo strace
	have mkfs.ext4 || echo e2fsprogs
	have ip || echo iproute2
	have tmux || echo tmux
	have zsh || echo zsh
	have fish || echo fish
	[[ -r /usr/share/bash-completion/bash_completion ]] || echo bash-completion
	have node || echo nodejs
	have npm || echo npm
	have git-lfs || echo git-lfs
	local program
	for program in "${also[@]}"; do have "$program" || echo "$program"; done
	if [[ $(engine_state) == down && -z ${DOCKER_HOST:-} ]]; then
		have dockerd || printf '%s\n' docker.io ca-certificates
		have iptables || echo iptables
	fi
}

install_packages() {
	local packages
	mapfile -t packages < <(missing_packages)
	((${#packages[@]})) || return 0
	have apt-get || die "This machine has no apt; install the equivalent of these Debian packages, then run this again: ${packages[*]}."
	can_be_root || die "Installing packages needs root rights; run as root or with sudo: apt-get install ${packages[*]}"
	say "installing ${packages[*]}"
	apt_get update
	hold_services
	apt_get install -y --no-install-recommends "${packages[@]}"
	release_services
	# On a machine with systemd, the package starts its service itself.
	if systemd_runs && [[ " ${packages[*]} " == *" docker.io "* ]]; then note_systemd_engine; fi
}

# apt_get prints nothing if it succeeds and its whole output if it fails. A failed update is ignored, because a broken
# third-party source must not prevent the installation.
apt_get() {
	local log=$build_dir/apt.log
	[[ $1 != update ]] || : >"$log"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null && return 0
	[[ $1 != update ]] || return 0
	cat "$log" >&2
	die "apt-get $1 failed; the lines above say why."
}

# Without an init system, the installation would fail when a package tries to start its service.
policy=/usr/sbin/policy-rc.d
hold_services() {
	if systemd_runs || [[ -e $policy ]]; then return 0; fi
	trap release_services EXIT
	printf '#!/bin/sh\n# agbox-setup: removed after the installation\nexit 101\n' | as_root tee "$policy" >/dev/null
	as_root chmod 755 "$policy"
}

release_services() {
	if grep -qs agbox-setup "$policy"; then as_root rm -f "$policy"; fi
}

provide_engine() {
	local state
	state=$(engine_state)
	if [[ $state == down ]]; then
		[[ -z ${DOCKER_HOST:-} ]] || die "No Docker engine answers at DOCKER_HOST=$DOCKER_HOST; start it, or unset DOCKER_HOST."
		can_be_root || die "No Docker engine answers at /var/run/docker.sock, and starting one needs root rights; start it, or run this with sudo."
		start_engine
		state=$(engine_state)
	fi
	[[ $state == up ]] || die "You have no permission to use the Docker engine; join its group ('sudo usermod -aG docker $(id -un)'), log in again, and run this again."
}

# take_lock allows one set-up at a time on this machine. It opens the file read-only: more is not permitted for another
# user's file in a sticky directory, and a lock needs no more.
take_lock() {
	local dir=/run/lock lock
	[[ -w $dir ]] || dir=/tmp
	lock=$dir/agbox-setup.lock
	(set -C && : >"$lock") 2>/dev/null || true
	exec 9<"$lock"
	flock -n 9 && return 0
	say "waiting for another set-up on this machine"
	flock -w 900 9 || die "Another set-up has held $lock for 15 minutes; end it and run this again."
}

main
