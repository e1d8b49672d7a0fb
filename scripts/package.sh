#!/usr/bin/env bash
# Makes a Debian package of what 'make build' has built, in the folder DIST (default dist), and prints its path. It needs
# dpkg-deb, no root rights and no network.
set -euo pipefail
shopt -s inherit_errexit
# shellcheck source=scripts/lib/common.sh
. "$(dirname "$0")/lib/common.sh"
cd "$repo_root"
umask 022

have dpkg-deb || die "dpkg-deb is missing; make the package on Debian or Ubuntu."
[[ -x bin/agbox ]] || die "There is no bin/agbox: run 'make build' first."
built=$(bin/agbox --version)
version=$(scripts/debian-version.sh "${built#agbox }")
architecture=$(dpkg --print-architecture)
dist=${DIST:-dist}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# A folder of its own: dpkg gives the mode of the topmost folder to /.
root=$work/root
mkdir "$root"
DESTDIR=$root PREFIX=/usr UNIT_DIR=lib/systemd/user ZSH_DIR=share/zsh/vendor-completions scripts/install.sh
gzip -9n "$root"/usr/share/man/man1/*.1

doc=$root/usr/share/doc/agbox
mkdir -p "$doc"
cp contrib/systemd/README.md "$doc/README.systemd.md"
cp README.md docs/*.md "$doc"

# What clients in other languages need: the definitions of the API, and an example with what it needs.
proto=$root/usr/share/agbox/proto
mkdir -p "$proto" "$doc/examples"
(cd proto && cp --parents agbox/v1/*.proto "$proto")
cp -r third_party/proto/. "$proto"
cp -r contrib/javascript "$doc/examples"
scripts/snippet.sh docs/ide.md follow >"$doc/examples/javascript/follow.js"
cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: agbox
Source: https://github.com/agbox/agbox

Files: *
Copyright: the agbox authors
License: Apache-2.0
 On Debian systems the text of the license is in /usr/share/common-licenses/Apache-2.0.
Comment:
 The programs contain these modules, whose licenses are in /usr/share/doc/agbox/licenses:
END
scripts/licenses.sh "$doc/licenses" | sed 's/^/  /' >>"$doc/copyright"

mkdir "$root/DEBIAN"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
# The engine may be on another path or come from another vendor, so it is recommended. The binaries are static.
cat >"$root/DEBIAN/control" <<END
Package: agbox
Version: $version
Architecture: $architecture
Maintainer: The agbox authors <noreply@agbox.invalid>
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Recommends: docker.io | docker-ce | moby-engine, git
Suggests: bash-completion, less
Section: admin
Priority: optional
Homepage: https://github.com/agbox/agbox
Description: sandboxes for coding agents that outlive their daemon
 agbox gives a coding agent full power inside a container and keeps the machine
 around it safe. The daemon agboxd, which the first command of a user starts,
 owns the sandboxes of this user. Commands, their output and their exit codes
 survive a stop, a crash or an upgrade of the daemon.
END

# The same commit gives the same package.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
mkdir -p "$dist"
package=$dist/agbox_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zgzip -z6 --build "$root" "$package" >/dev/null
echo "$package"
