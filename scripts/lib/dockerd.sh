# Finding, installing and starting a Docker engine. Sourced, never run.
# shellcheck shell=bash
# shellcheck source=scripts/lib/common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

dockerd_log=/var/log/agbox-dockerd.log
dockerd_pidfile=/var/run/docker.pid # dockerd's default, which makes a second dockerd refuse to start
dockerd_wait=60                     # timeout in seconds for an engine to answer after its start

# engine_state prints "up", "denied" (it runs, but this user has no permission to use it) or "down".
engine_state() {
	local code=0
	"$engine_tool" ping >/dev/null 2>&1 || code=$?
	case $code in
	0) echo up ;;
	2) echo denied ;;
	*) echo down ;;
	esac
}

# engine_answers runs the ping as root, because right after the installation this user is not in the docker group yet.
engine_answers() { as_root "$engine_tool" ping >/dev/null 2>&1; }

systemd_runs() { [[ -d /run/systemd/system ]]; }

start_engine() {
	if systemd_runs; then
		say "starting Docker: systemctl start docker"
		as_root systemctl start docker || die "systemctl could not start Docker; 'systemctl status docker' says why."
		note_systemd_engine
	else
		start_dockerd
		# If dockerd starts while the containerd of an earlier dockerd is still ending, it waits for that one and fails.
		engine_comes_up || { say "dockerd exited; starting it once more" && start_dockerd; }
	fi
	engine_comes_up || give_up "dockerd exited right after its start"
	say "Docker $(as_root "$engine_tool" ping) answers"
}

note_systemd_engine() { echo 'systemctl stop docker docker.socket' | as_root tee "$started_engine_file" >/dev/null; }

# dockerd needs control groups. On a machine without an init system they may not be mounted.
mount_cgroups() {
	grep -q ' /sys/fs/cgroup' /proc/self/mounts && return 0
	say "nothing is mounted on /sys/fs/cgroup; mounting cgroup2 there"
	as_root mount -t cgroup2 cgroup2 /sys/fs/cgroup || say "the mount failed; dockerd may not start without it"
}

dockerd_pid() {
	local pid
	pid=$(cat "$dockerd_pidfile" 2>/dev/null) || return 1
	[[ -n $pid && $(cat "/proc/$pid/comm" 2>/dev/null) == dockerd ]] || return 1
	! grep -q '^State:.*Z' "/proc/$pid/status" 2>/dev/null || return 1 # it has ended but was not reaped
	echo "$pid"
}

# await_running_dockerd waits until a dockerd that another program started answers. It fails if that dockerd ends.
await_running_dockerd() {
	local deadline=$((SECONDS + dockerd_wait))
	until engine_answers; do
		dockerd_pid >/dev/null || return 1
		((SECONDS < deadline)) || give_up "Docker did not answer within $dockerd_wait seconds"
		sleep 0.2
	done
}

start_dockerd() {
	local pid
	if pid=$(dockerd_pid); then
		say "dockerd is running (pid $pid) but does not answer yet"
		await_running_dockerd && return 0
		say "dockerd (pid $pid) has ended"
	fi
	mount_cgroups
	say "starting Docker: dockerd, detached, log in $dockerd_log"
	# Remove the file of an earlier dockerd, or engine_comes_up would watch that dockerd's pid instead of the new one.
	as_root rm -f "$started_engine_file"
	# Start dockerd in a new session and close inherited descriptors: it must outlive this script without holding its
	# pipes or its lock. The limits are those of Docker's own service files.
	# shellcheck disable=SC2016
	as_root setsid --fork bash -c '
		cd /
		ulimit -n 1048576 2>/dev/null
		ulimit -u unlimited 2>/dev/null
		for fd in /proc/self/fd/*; do
			fd=${fd##*/}
			if ((fd > 2)); then eval "exec $fd>&-"; fi
		done
		rm -f "$3"
		echo "kill $$" >"$2"
		exec dockerd --pidfile "$3" >>"$1" 2>&1
	' dockerd-start "$dockerd_log" "$started_engine_file" "$dockerd_pidfile" </dev/null >/dev/null 2>&1
}

# engine_comes_up waits until the engine answers. It fails if the started dockerd has ended.
engine_comes_up() {
	local deadline=$((SECONDS + dockerd_wait)) started=""
	until engine_answers; do
		started=$(sed -n 's/^kill //p' "$started_engine_file" 2>/dev/null || true)
		if [[ -n $started && ! -d /proc/$started ]] && ! dockerd_pid >/dev/null; then
			return 1
		fi
		((SECONDS < deadline)) || give_up "Docker did not answer within $dockerd_wait seconds"
		sleep 0.2
	done
}

give_up() {
	if ! systemd_runs && as_root test -s "$dockerd_log"; then
		say "the last lines of $dockerd_log:"
		as_root tail -n 15 "$dockerd_log" >&2
	fi
	die "$1; fix that or start a Docker engine yourself, then run this again."
}
