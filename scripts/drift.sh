#!/usr/bin/env bash
# Fails if a generated .pb.go file does not match its .proto file, or if its .proto file no longer exists. It changes
# nothing in the tree. The test of scripts/docgen does the same for the generated documents.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"

fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
buf=(go tool -modfile=tools/go.mod buf)

"${buf[@]}" generate --output "$fresh"
scripts/ownregistry.sh "$fresh"
"${buf[@]}" generate --output "$fresh" --template buf.gen.guest.yaml

stale=()
for file in $({
	(cd "$fresh" && find . -name '*.pb.go' -printf '%P\n')
	find proto -name '*.pb.go'
} | sort -u); do
	cmp -s "$file" "$fresh/$file" || stale+=("$file")
done
((${#stale[@]} == 0)) || die "these files do not match the .proto files; run 'make generate' or remove them: ${stale[*]}"
