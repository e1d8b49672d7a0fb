#!/usr/bin/env bash
# Prints the block of code of the document FILE that has the mark <!-- run: NAME -->.
#
#   scripts/snippet.sh docs/ide.md follow
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"

file=${1:?usage: snippet.sh FILE NAME} name=${2:?usage: snippet.sh FILE NAME}
block=$(sed -n "/^<!-- run: $name -->\$/,/^\`\`\`\$/p" "$file" | sed '1,2d;$d')
[[ -n $block ]] || die "$file has no block '$name'."
printf '%s\n' "$block"
