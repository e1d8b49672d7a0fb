package hostfiles

import (
	"os"
	"path"
	"slices"
	"strings"
)

// mounted is one line of /proc/self/mountinfo: what of which file system is seen where.
type mounted struct {
	device string
	// root is the part of the file system that is mounted, at is where.
	root, at string
}

type mountList []mounted

// mountTable reads what is mounted in the daemon's view of the host; nothing where
// the kernel has no such table.
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

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// aliases are the other paths under which the same file is seen, because a part of
// its file system is mounted a second time.
func (l mountList) aliases(p string) []string {
	at := -1
	for i, m := range l {
		// Of mounts at the same place the last one is on top.
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

// below are the places below a path at which something else is mounted.
func (l mountList) below(p string) []string {
	var all []string
	for _, m := range l {
		if m.at != p && within(m.at, p) {
			all = append(all, m.at)
		}
	}
	return all
}

// within tells whether a path is a folder or below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
