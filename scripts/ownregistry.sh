#!/usr/bin/env bash
# Lets the generated code of agbox.v1 in the folder FOLDER register in the registry of its own package
# (proto/agbox/v1/registry.go) instead of the global one: there it would collide with other packages for agbox.v1.
# Who checks the validation rules imports their descriptors; a program that only calls starts faster without them.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"

folder=${1:?usage: ownregistry.sh FOLDER}
for file in "$folder"/proto/agbox/v1/*.pb.go; do
	[[ $file == *_grpc.pb.go ]] && continue
	sed -i \
		-e 's/^\t\t\tGoPackagePath: .*/&\n\t\t\tFileRegistry:  Files,/' \
		-e 's/^\t\tDependencyIndexes: .*/&\n\t\tTypeRegistry:      Types,/' "$file"
	sed -i -e '/^\t_ "buf\.build\/gen\/.*\/validate"$/d' "$file"
	(($(grep -c 'Registry: *\(Files\|Types\),$' "$file") == 2)) || die "protoc-gen-go makes other code than before: $file"
done
