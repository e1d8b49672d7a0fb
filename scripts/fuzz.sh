#!/usr/bin/env bash
# Runs each fuzz test for FUZZ_TIME (default 30s), or only those whose name matches FUZZ, a regular expression. A failing
# input is left in testdata/fuzz of its package: 'go test' repeats it from then on.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"

found=0
failed=()
while IFS=: read -r file name; do
	[[ $name =~ ${FUZZ:-.} ]] || continue
	found=$((found + 1))
	say "$(dirname "$file") $name"
	go test -run='^$' -fuzz="^$name\$" -fuzztime="${FUZZ_TIME:-30s}" "./$(dirname "$file")" || failed+=("$name")
done < <(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/:func /:/')
((found > 0)) || die "no fuzz test matches '${FUZZ:-}'"
((${#failed[@]} == 0)) || die "these failed: ${failed[*]}"
