package hostfiles

import (
	"os"
	"path"
	"slices"
	"strings"
)

// mounted is one line of /proc/self/mountinfo: which part of which file system is mounted
// where.
type mounted struct {
	device string
	// root is the part of the file system that is mounted, at is the mount point.
	root, at string
}

type mountList []mounted

// mountTable reads the mounts of the daemon's mount namespace. It is empty if the kernel
// has no such table.
var mountTable = func() mountList {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	return parseMounts(string(raw))
}

func parseMounts(text string) mountList {
	var list mountList
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		list = append(list, mounted{device: fields[2], root: unescape(fields[3]), at: unescape(fields[4])})
	}
	return list
}

// unescape decodes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// aliases returns the other paths of the same file. They exist if a part of its file
// system is mounted more than once.
func (l mountList) aliases(p string) []string {
	at := -1
	for i, m := range l {
		// Of several mounts at the same path the last one is on top.
		if within(p, m.at) && (at < 0 || len(m.at) >= len(l[at].at)) {
			at = i
		}
	}
	if at < 0 {
		return nil
	}
	inside := path.Join(l[at].root, strings.TrimPrefix(p, l[at].at))
	var all []string
	for _, m := range l {
		if m.device != l[at].device || !within(inside, m.root) {
			continue
		}
		if alias := path.Join(m.at, strings.TrimPrefix(inside, m.root)); alias != p && !slices.Contains(all, alias) {
			all = append(all, alias)
		}
	}
	return all
}

// below returns the mount points below a path.
func (l mountList) below(p string) []string {
	var all []string
	for _, m := range l {
		if m.at != p && within(m.at, p) {
			all = append(all, m.at)
		}
	}
	return all
}

// within reports whether a path is a folder or below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
