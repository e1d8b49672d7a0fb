#!/usr/bin/env bash
# Fails if there is a function that no program calls. A function that only tests call is dead code too. Exceptions are
# the packages for tests, package client, whose callers are in other repositories, and the plain rule of leases, with which
# tests compare the index: there a call in a test suffices.
# golangci-lint's "unused" finds other unused names within a package.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"

deadcode=(go tool -modfile=tools/lint/go.mod deadcode)
called_from_elsewhere='^(client|e2e|daemon/guests/guesttest|agents/lease|runtime/runtimetest|spec/badspecs)/'

unused=$({
	"${deadcode[@]}" ./... | { grep -Ev "$called_from_elsewhere" || true; }
	"${deadcode[@]}" -tags=presets -test ./...
} | sort -u)
[[ -z $unused ]] || die "no program calls these functions:"$'\n'"$unused"
