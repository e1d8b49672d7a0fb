#!/usr/bin/env bash
# Prints the version of the Debian package for a version that 'git describe --tags --always --dirty' printed. Debian sorts
# the results as the commits follow each other:
#
#   v1.2.0-rc.1             1.2.0~rc.1               before the release
#   v1.2.0                  1.2.0
#   v1.2.0-14-g1a2b3c4      1.2.0+14.g1a2b3c4        14 commits after it
#   v1.2.0-dirty            1.2.0+dirty              with changes that are not committed
#   1a2b3c4                 0~661.g1a2b3c4           661 commits without a tag
#   dev                     0~dev                    not built from a repository
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"

[[ $# == 1 ]] || die "Give one version."
release='([0-9]+\.[0-9]+\.[0-9]+)'
pre='(-([0-9A-Za-z][0-9A-Za-z.-]*))?'
rest=$1 after=""

if [[ $rest == *-dirty ]]; then rest=${rest%-dirty} after=dirty; fi
if [[ $rest =~ ^(v.*)-([0-9]+)-(g[0-9a-f]+)$ ]]; then
	rest=${BASH_REMATCH[1]}
	after=${BASH_REMATCH[2]}.${BASH_REMATCH[3]}${after:+.$after}
fi
if [[ $rest =~ ^v$release$pre$ ]]; then
	version=${BASH_REMATCH[1]}
	pre=${BASH_REMATCH[3]}
	echo "$version${pre:+~${pre//-/.}}${after:++$after}"
elif [[ $rest =~ ^[0-9a-f]{7,40}$ ]]; then
	echo "0~$(git rev-list --count "$rest").g$rest${after:+.$after}"
elif [[ $rest == dev ]]; then
	echo "0~dev"
else
	die "'$1' is no version: tags must be like v1.2.3 or v1.2.3-rc.1."
fi
