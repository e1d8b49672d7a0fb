#!/usr/bin/env bash
# Prints the Go modules that are linked into the programs, a line each: module, version, licence. Writes the texts of their
# licences and notices into the folder DIR, a file for each module. It needs no network once the programs are built. It fails
# if it does not know a licence.
set -euo pipefail
shopt -s inherit_errexit nullglob
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"

dir=${1:?"say where the texts go: scripts/licenses.sh DIR"}
mkdir -p "$dir"

# kinds prints the names that Debian has for the licences in the texts.
kinds() {
	local list=()
	! grep -q 'Apache License' "$@" || list+=(Apache-2.0)
	! grep -q 'Mozilla Public License' "$@" || list+=(MPL-2.0)
	! grep -q 'Permission is hereby granted, free of charge' "$@" || list+=(Expat)
	! grep -qE 'Permission to use, copy, modify, and(/or)? distribute' "$@" || list+=(ISC)
	if grep -q 'Redistribution and use in source and binary forms' "$@"; then
		if grep -qiE 'neither (the )?name' "$@"; then list+=(BSD-3-clause); else list+=(BSD-2-clause); fi
	fi
	local all="${list[*]}"
	echo "${all// / and }"
}

# module NAME VERSION FOLDER prints a line and writes the texts.
module() {
	local texts=("$3"/LICEN[SC]E "$3"/LICEN[SC]E.txt "$3"/LICEN[SC]E.md "$3"/LICEN[SC]E-* "$3"/COPYING*) notices=("$3"/NOTICE*) kind text
	((${#texts[@]})) || die "$1 has no licence in $3."
	kind=$(kinds "${texts[@]}")
	[[ -n $kind ]] || die "The licence of $1 is not known: read ${texts[*]} and add it to this script."
	for text in "${texts[@]}" "${notices[@]}"; do
		cat "$text"
		echo
	done >"$dir/${1//\//_}.txt"
	echo "$1 $2 $kind"
}

module go "$(go env GOVERSION)" "$(go env GOROOT)"
go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/... | sort -u | while read -r path version folder; do
	module "$path" "$version" "$folder"
done
