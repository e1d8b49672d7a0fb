#!/usr/bin/env bash
# Fails if there is a function that no program calls. What is only ever called by tests is dead code too, but in the
# packages that exist for tests, and in package client, which has callers elsewhere: there a test must call it.
# golangci-lint's "unused" does the same for other names, within a package.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"

deadcode=(go tool -modfile=tools/lint/go.mod deadcode)
called_from_elsewhere='^(client|e2e|runtime/runtimetest|spec/badspecs)/'

unused=$({
	"${deadcode[@]}" ./... | { grep -Ev "$called_from_elsewhere" || true; }
	"${deadcode[@]}" -test ./...
} | sort -u)
[[ -z $unused ]] || die "no program calls these functions:"$'\n'"$unused"
