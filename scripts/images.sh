#!/usr/bin/env bash
# Builds the local images without a registry. Each has a label with the hash of everything that it is made from, so a
# second run skips images that exist already.
#
#   scripts/images.sh base    agbox/base, for the quick start and the demo
#   scripts/images.sh all     agbox/base and the agbox-test images
#   scripts/images.sh presets agbox-test/preset-base, a Debian for the images of the presets
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

recipe_label=agbox-image-recipe
cache_dir=$build_dir/images
tar_args=(--sort=name --mtime=@0 --numeric-owner --format=gnu)

agent_passwd='agent:x:1000:1000:agent:/home/agent:/bin/sh'
agent_group='agent:x:1000:'

main() {
	build_engine_tool
	"$engine_tool" ping >/dev/null || die "There is no Docker engine that you have permission to use; run 'make setup'."
	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	case ${1:-all} in
	base) base_image ;;
	all)
		base_image
		test_images
		;;
	presets) preset_base ;;
	*) die "unknown set of images '$1'; choose 'base', 'all' or 'presets'." ;;
	esac
}

base_image() {
	local content
	content=$(busybox_content)
	image agbox/base:latest "$content" busybox_tar 'CMD ["sh"]'
}

# The tests use these settings to check which of them an exec takes from its image.
test_images() {
	local content
	content=$(busybox_content)
	image agbox-test/busybox:latest "$content" busybox_tar \
		'CMD ["sh"]' 'ENV IMAGE_ENV=from-image' 'WORKDIR /workdir' 'LABEL agbox-test=busybox'
	image agbox-test/user:latest "$content" busybox_tar \
		'CMD ["sh"]' 'ENV IMAGE_ENV=from-image' 'WORKDIR /workdir' 'LABEL agbox-test=user' 'USER agent'
	image agbox-test/entrypoint:latest "$content" busybox_tar \
		'ENTRYPOINT ["/entrypoint"]' 'CMD ["from-cmd", "two words"]' 'LABEL agbox-test=entrypoint'

	(cd "$repo_root" && CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$build_dir/probe" ./scripts/images/scratchprobe)
	content=$(sha256sum <"$build_dir/probe")
	image agbox-test/scratch:latest "$content" scratch_tar 'CMD ["/probe"]' 'LABEL agbox-test=scratch'

	content=$(debian_content)
	image agbox-test/debian:latest "$content" debian_tar \
		'CMD ["bash"]' 'ENV LANG=C.UTF-8' 'LABEL agbox-test=debian'
	database_images

	content=$(languages_content)
	image agbox-test/languages:latest "$content" languages_tar \
		'CMD ["bash"]' 'ENV LANG=C.UTF-8' 'LABEL agbox-test=languages'
}

# Two servers that people typically run beside their code. Both images have both servers and their clients, so one
# download suffices, and one image has the clients of both.
database_images() {
	local content
	content=$(databases_content)
	image agbox-test/redis:latest "$content" databases_tar \
		'CMD ["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/data", "--appendonly", "yes"]' \
		'HEALTHCHECK --interval=500ms --timeout=5s --retries=60 CMD ["redis-cli", "ping"]' \
		'ENV LANG=C.UTF-8' 'USER redis' 'WORKDIR /data' 'LABEL agbox-test=redis'
	image agbox-test/postgres:latest "$content" databases_tar \
		'ENTRYPOINT ["/postgres-entrypoint"]' 'ENV PGDATA=/pgdata/main' \
		'ENV PATH=/usr/lib/postgresql/15/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
		'ENV LANG=C.UTF-8' 'USER postgres' 'WORKDIR /pgdata' 'LABEL agbox-test=postgres'
}

databases_packages='redis-server postgresql-15'

databases_content() {
	local debian_packages=$databases_packages
	debian_content
	declare -f databases_tar lay_out_databases
}

# databases_tar excludes what the servers do not need: the compiler for queries, and the cluster that the package
# creates.
databases_tar() {
	local tar debian_packages=$databases_packages
	tar=$cache_dir/databases-$(databases_content | sha256sum | cut -c -16).tar
	if [[ ! -e $tar ]]; then
		mkdir -p "$cache_dir"
		rm -f "$cache_dir"/databases-*
		bootstrap_debian | tar --delete --wildcards --wildcards-match-slash --no-anchored \
			'libLLVM*' 'llvmjit*' '*/bitcode/*' './var/lib/postgresql/*' './var/lib/apt/lists/*' './var/cache/*' >"$tar.part"
		lay_out_databases "$work/databases"
		tar --append --file="$tar.part" "${tar_args[@]}" -C "$work/databases" --owner=0 --group=0 ./postgres-entrypoint
		tar --append --file="$tar.part" "${tar_args[@]}" -C "$work/databases" --owner="$(uid_in "$tar.part" redis)" --group=0 ./data
		tar --append --file="$tar.part" "${tar_args[@]}" -C "$work/databases" --owner="$(uid_in "$tar.part" postgres)" --group=0 ./pgdata
		mv "$tar.part" "$tar"
	fi
	echo "$tar"
}

lay_out_databases() {
	mkdir -p "$1"/{data,pgdata}
	chmod 755 "$1"/{data,pgdata}
	cat >"$1/postgres-entrypoint" <<-'SCRIPT'
		#!/bin/sh
		set -e
		if [ ! -s "$PGDATA/PG_VERSION" ]; then
			initdb --auth=trust --username=postgres --no-sync --pgdata="$PGDATA"
			echo 'host all all all trust' >>"$PGDATA/pg_hba.conf"
		fi
		exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
	SCRIPT
	chmod 755 "$1/postgres-entrypoint"
}

# uid_in prints a user's id from /etc/passwd in a tar file.
uid_in() {
	tar --extract --to-stdout --file="$1" ./etc/passwd | awk -F: -v name="$2" '$1 == name {print $3}'
}

# image NAME CONTENT TAR_FUNCTION CHANGE... builds the image NAME from a tar file. TAR_FUNCTION creates that file and
# prints its path. The image is not built if one with the same content and changes exists.
image() {
	local name=$1 content=$2 make_tar=$3 recipe tar
	shift 3
	recipe=$(printf '%s\n' "$content" "$@" | sha256sum | cut -c -32)
	if [[ $("$engine_tool" label "$name" "$recipe_label") == "$recipe" ]]; then return 0; fi
	say "making $name"
	tar=$("$make_tar")
	"$engine_tool" import "$name" "$@" "LABEL $recipe_label=$recipe" <"$tar"
}

busybox_content() {
	local busybox
	busybox=$(static_busybox) || die "There is no static busybox; run 'make setup'."
	sha256sum <"$busybox"
	declare -f busybox_tar lay_out_busybox
}

# busybox_tar makes a root file system with busybox as its only program. It is made once for all images that use it.
busybox_tar() {
	local tar=$work/busybox.tar root=$work/busybox
	if [[ ! -e $tar ]]; then
		lay_out_busybox "$root"
		tar --create --file="$tar" "${tar_args[@]}" --owner=0 --group=0 -C "$root" --exclude=./home/agent .
		tar --append --file="$tar" "${tar_args[@]}" --owner=1000 --group=1000 -C "$root" ./home/agent
	fi
	echo "$tar"
}

lay_out_busybox() {
	local root=$1 applet
	mkdir -p "$root"/{bin,dev,etc,home/agent,proc,root,run,sys,tmp,usr,var/tmp,workdir}
	chmod 1777 "$root/tmp" "$root/var/tmp" "$root/workdir"
	chmod 700 "$root/root" "$root/home/agent"
	cp "$(static_busybox)" "$root/bin/busybox"
	chmod 755 "$root/bin/busybox"
	"$root/bin/busybox" --list | while read -r applet; do
		[[ $applet == busybox ]] || echo "$applet"
	done | (cd "$root/bin" && xargs -n 1 ./busybox ln -s busybox)
	ln -s bin "$root/sbin"
	ln -s ../bin "$root/usr/bin"
	ln -s ../bin "$root/usr/sbin"
	printf '%s\n' 'root:x:0:0:root:/root:/bin/sh' "$agent_passwd" 'nobody:x:65534:65534:nobody:/:/bin/false' >"$root/etc/passwd"
	printf '%s\n' 'root:x:0:' "$agent_group" 'nogroup:x:65534:' >"$root/etc/group"
	cat >"$root/entrypoint" <<-'SCRIPT'
		#!/bin/sh
		# One argument per line, then stay.
		printf '%s\n' "$@" >/tmp/entrypoint.txt
		exec sleep 1000000000
	SCRIPT
	chmod 755 "$root/entrypoint"
}

scratch_tar() {
	local tar=$work/scratch.tar
	tar --create --file="$tar" "${tar_args[@]}" --owner=0 --group=0 --mode=755 -C "$build_dir" probe
	echo "$tar"
}

debian_packages=procps

debian_content() {
	# shellcheck source=/dev/null
	(. /etc/os-release && echo "$ID $VERSION_CODENAME $debian_packages")
	declare -f bootstrap_debian
}

# A Debian with apt, which trusts the certificates that this machine's owner has added.
preset_base() {
	local content
	content=$(preset_base_content)
	image agbox-test/preset-base:latest "$content" preset_base_tar 'CMD ["bash"]' 'ENV LANG=C.UTF-8' 'LABEL agbox-test=preset-base'
}

preset_base_content() {
	# shellcheck source=/dev/null
	(. /etc/os-release && echo "$ID $VERSION_CODENAME")
	declare -f preset_base_tar
	cat /usr/local/share/ca-certificates/*.crt 2>/dev/null || true
}

# shellcheck disable=SC2016 # $1 is mmdebstrap's
preset_base_tar() {
	local codename sources tar=$work/preset-base.tar
	# shellcheck source=/dev/null
	codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
	sources=$(apt_sources)
	printf '%s\n' "$sources" | as_root mmdebstrap --quiet --variant=apt --include=ca-certificates \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--customize-hook='for f in /usr/local/share/ca-certificates/*.crt; do [ ! -e "$f" ] || cp "$f" "$1/usr/local/share/ca-certificates/"; done' \
		--customize-hook='chroot "$1" update-ca-certificates' \
		"$codename" "$tar" - >&2
	echo "$tar"
}

# The languages in which docs/agents.md has programs.
languages_packages='python3 nodejs'

languages_content() {
	local debian_packages=$languages_packages
	debian_content
	declare -f languages_tar
}

languages_tar() {
	local tar debian_packages=$languages_packages
	tar=$cache_dir/languages-$(languages_content | sha256sum | cut -c -16).tar
	if [[ ! -e $tar ]]; then
		mkdir -p "$cache_dir"
		rm -f "$cache_dir"/languages-*
		bootstrap_debian | tar --delete --wildcards --wildcards-match-slash --no-anchored \
			'./var/lib/apt/lists/*' './var/cache/*' >"$tar.part"
		mv "$tar.part" "$tar"
	fi
	echo "$tar"
}

# debian_tar caches the output of mmdebstrap, so that it is not downloaded again if the engine lost its images.
debian_tar() {
	local tar
	tar=$cache_dir/debian-$(debian_content | sha256sum | cut -c -16).tar
	if [[ ! -e $tar ]]; then
		mkdir -p "$cache_dir"
		rm -f "$cache_dir"/debian-*
		bootstrap_debian >"$tar.part"
		mv "$tar.part" "$tar"
	fi
	echo "$tar"
}

# shellcheck disable=SC2016 # $1 is mmdebstrap's
bootstrap_debian() {
	local id codename sources network options=()
	have mmdebstrap || die "mmdebstrap is missing; run 'make setup'."
	# shellcheck source=/dev/null
	read -r id codename < <(. /etc/os-release && echo "$ID $VERSION_CODENAME")
	[[ ! -e /usr/share/keyrings/$id-archive-keyring.gpg ]] ||
		options+=(--keyring="/usr/share/keyrings/$id-archive-keyring.gpg")
	network=$(apt_network_options)
	[[ -z $network ]] || options+=(--aptopt="$network")
	sources=$(apt_sources)
	[[ -n $sources ]] || die "apt knows no package lists of this distribution; run 'apt-get update' as root."
	# mmdebstrap reads the sources from standard input. It uses no other settings of this machine's apt than the options.
	printf '%s\n' "$sources" | as_root mmdebstrap --quiet --variant=essential --include="$debian_packages" \
		"${options[@]}" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook="echo '$agent_passwd' >>\"\$1/etc/passwd\"" \
		--customize-hook="echo '$agent_group' >>\"\$1/etc/group\"" \
		--customize-hook='install -d -m 700 -o 1000 -g 1000 "$1/home/agent"' \
		--customize-hook='rm -rf "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/apt/sources.list*' \
		"$codename" - -
}

# apt_sources prints the sources of this machine's own distribution that its apt is configured with, one per line. The
# $(...) are placeholders of apt.
# shellcheck disable=SC2016
apt_sources() {
	local origin
	# shellcheck source=/dev/null
	case $(. /etc/os-release && echo "$ID") in
	ubuntu) origin=Ubuntu ;;
	*) origin=Debian ;;
	esac
	apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' \
		'Created-By: Packages' "Origin: $origin" | sort -u
}

apt_network_options() {
	apt-config dump --format '%f "%v";%n' | grep -E '^Acquire::(https?::Proxy|Check-Valid-Until|Check-Date) ' || true
}

main "$@"
