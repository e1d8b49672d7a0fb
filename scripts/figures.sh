#!/usr/bin/env bash
# Prints the size and the structure of the code, and how many of its files an exec, a message to an agent and an apply
# pass through: files with a block that runs once more for each one more of them, by the coverage of Go, in the CLI and
# in the daemon. (The supervisor runs in the container and is not counted.)
#
#   scripts/figures.sh          all of it
#   scripts/figures.sh arrows   only the arrows back up between files of a package; fails if there is one
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/demo.sh
. "$(dirname "$0")/lib/demo.sh"
cd "$repo_root"

times=20
work=$(mktemp -d /tmp/agbox-figures.XXXXXX)

main() {
	trap clean_up EXIT
	(cd tools/lint && go build -o "$work/figures" ./figures)
	"$work/figures" "$@"
	[[ -z ${1:-} ]] || return 0
	CGO_ENABLED=0 go build -cover -covermode=count -coverpkg=./... -o "$work/bin/" ./cmd/agbox ./cmd/agboxd
	cp bin/agbox-init "$work/bin/"
	PATH=$work/bin:$PATH
	mkdir "$work/folder"
	echo "files passed, per operation:"
	passed exec version_of exec_true
	passed message version_of send
	passed apply change change_and_apply
}

# passed NAME BASE OPERATION plays a sandbox twice, with many of BASE and with many of OPERATION.
passed() {
	play "$2" "$work/$1.base"
	play "$3" "$work/$1.with"
	printf '  %-10s %s\n' "$1" "$(compare "$work/$1.base" "$work/$1.with" | tee "$work/$1.files" | wc -l)"
	[[ -z ${FILES:-} ]] || sed 's/^/    /' "$work/$1.files"
}

play() {
	local i
	export GOCOVERDIR=$2
	mkdir "$GOCOVERDIR"
	(
		cd "$work/folder"
		echo 0 >file
		agbox daemon start
		agbox create box --image "$image" --workspace .
		agbox agent spawn idle --in box -- sleep 1000
		until agbox agent inspect idle -o json | grep -q EXECUTING; do sleep 0.2; done
		for ((i = 0; i < times; i++)); do "$1" "$i"; done
		agbox rm -f box
		agbox daemon stop
	) >"$2.log" 2>&1 || die "$(cat "$2.log")"
}

version_of() { agbox version; }
exec_true() { agbox exec box -- true; }
send() { agbox agent send idle "$1"; }
change() { agbox exec box -- sh -c "echo $1 >/workspace/file"; }
change_and_apply() {
	change "$1"
	agbox apply box
}

compare() {
	local side
	for side in "$@"; do go tool covdata textfmt -i="$side" -o="$side.txt"; done
	awk -v times="$times" 'FNR == 1 { n++; next } n == 1 { base[$1] += $3; next } { with[$1] += $3 }
		END { for (b in with) if (with[b] - base[b] >= times) { sub(/:.*/, "", b); if (!(b in seen)) { seen[b] = 1; print b } } }' \
		"$1.txt" "$2.txt" | grep -v '\.pb\.go$' | sort
}

clean_up() {
	agbox daemon stop >/dev/null 2>&1 || true
	rm -rf "$work" "$AGBOX_HOME"
}

main "$@"
