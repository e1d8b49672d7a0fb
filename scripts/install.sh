#!/usr/bin/env bash
# Installs what 'make build' has built, or removes it: the binaries, the units of contrib/systemd, and the manual pages
# and completions that the built agbox prints.
#
#   scripts/install.sh            install
#   scripts/install.sh uninstall  remove what it installed
#
# PREFIX (default /usr/local) is where the files are used. DESTDIR is put before it while they are copied. UNIT_DIR and
# ZSH_DIR are the folders below PREFIX for units and for completions of zsh.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"
umask 022

prefix=${PREFIX:-/usr/local}
# The path is written into a unit, where other characters have a meaning.
[[ $prefix =~ ^/[A-Za-z0-9/._+-]*$ ]] || die "PREFIX must be an absolute path of letters, digits and ._+-/, but is '$prefix'."
prefix=${prefix%/}
to=${DESTDIR:-}$prefix

# A new agboxd needs the new agbox-init beside it, so that one comes first.
binaries=(agbox-init agboxd agbox)
units=(agboxd.service agboxd.socket)
bin=$to/bin
man=$to/share/man/man1
user_units=$to/${UNIT_DIR:-share/systemd/user} # systemd looks there below /usr/local, /usr and ~/.local
bash_file=$to/share/bash-completion/completions/agbox
fish_file=$to/share/fish/vendor_completions.d/agbox.fish
zsh_file=$to/${ZSH_DIR:-share/zsh/site-functions}/_agbox

add() {
	local name page
	for name in "${binaries[@]}"; do
		[[ -x bin/$name ]] || die "There is no bin/$name: run 'make build' first."
	done
	install -d -m 755 "$bin" "$man" "$user_units" "$(dirname "$bash_file")" "$(dirname "$fish_file")" "$(dirname "$zsh_file")"
	for name in "${binaries[@]}"; do place 755 "$bin/$name" <"bin/$name"; done
	for name in "${units[@]}"; do
		sed "s|%h/.local/bin|$prefix/bin|" "contrib/systemd/$name" | place 644 "$user_units/$name"
	done
	made=$(mktemp -d)
	trap 'rm -rf "$made"' EXIT
	bin/agbox man --dir "$made"
	remove_pages # those of commands that an older version had
	for page in "$made"/*.1; do place 644 "$man/${page##*/}" <"$page"; done
	bin/agbox completion bash | place 644 "$bash_file"
	bin/agbox completion fish | place 644 "$fish_file"
	bin/agbox completion zsh | place 644 "$zsh_file"
}

# place writes standard input to a file with that mode. The rename lets a running program keep the file that it started.
place() {
	cat >"$2.new"
	chmod "$1" "$2.new"
	mv -f "$2.new" "$2"
}

remove() {
	local name
	for name in "${binaries[@]}"; do rm -f "$bin/$name"; done
	for name in "${units[@]}"; do rm -f "$user_units/$name"; done
	remove_pages
	rm -f "$bash_file" "$fish_file" "$zsh_file"
}

remove_pages() { rm -f "$man"/agbox.1 "$man"/agbox-*.1; }

case ${1:-} in
'') add ;;
uninstall) remove ;;
*) die "Unknown argument '$1': use 'uninstall' or none." ;;
esac
