#!/usr/bin/env bash
# Quick checks to run after each edit: compiles everything including tests, then lints and tests the changed packages.
# It needs no engine and does not use the race detector; 'make test' does both.
#
#   scripts/check.sh          against the branch's upstream, or else main
#   BASE=REV scripts/check.sh against REV
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"

main() {
	local base changed packages tested
	base=$(git merge-base HEAD "$(base_branch)")
	changed=$(changed_packages "$base")
	mapfile -t packages < <(grep -v '^./tools/' <<<"$changed")
	go vet ./...
	# tools/lint is a module of its own.
	if grep -q '^./tools/lint/' <<<"$changed"; then
		(cd tools/lint && go vet ./... && go tool golangci-lint run ./... && go test -count=1 ./...)
	fi
	if [[ ${#packages[@]} -eq 0 || -z ${packages[0]} ]]; then
		say "no package differs from $(git rev-parse --short "$base")"
		return 0
	fi
	go tool -modfile=tools/lint/go.mod golangci-lint run "${packages[@]}"
	# -count=1: this test runs the go command, so Go's test cache does not know what its result depends on.
	go test -count=1 ./internal/deps
	mapfile -t tested < <(printf '%s\n' "${packages[@]}" | grep -v -e '^./e2e' -e '^./runtime/docker' -e '^./internal/deps$')
	if ((${#tested[@]})); then go test -vet=off "${tested[@]}"; fi
	if grep -q -e '^./e2e' -e '^./runtime/docker' <<<"$changed"; then say "the tests of ./e2e and ./runtime/docker need an engine: make test-e2e"; fi
}

base_branch() {
	local candidate
	for candidate in "${BASE:-}" '@{upstream}' origin/main main; do
		if [[ -n $candidate ]] && git rev-parse --verify --quiet "$candidate^{commit}" 2>/dev/null; then return 0; fi
		[[ -z $candidate || $candidate != "${BASE:-}" ]] || die "there is no revision '$BASE'"
	done
	die "there is neither an upstream nor a branch main to compare with; set BASE=REV"
}

# changed_packages prints the directories of packages with new files, or with files that differ from the given commit.
# A file in a directory without Go code, or in testdata, belongs to the nearest package above it.
changed_packages() {
	{
		git diff --name-only "$1"
		git ls-files --others --exclude-standard
	} | while read -r file; do
		dir=$(dirname "$file")
		while [[ $dir != . && ($dir == */testdata* || -z $(compgen -G "$dir/*.go")) ]]; do dir=$(dirname "$dir"); done
		[[ $dir == . ]] || echo "./$dir"
	done | sort -u
}

main
