package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxHosts bounds what is read of a file with host names, in bytes.
const maxHosts = 1 << 20

// call writes the name of the container to its files. The engine mounts each of them, so they are rewritten in
// place. A container without one of them, or that may not write it, has the name without it.
func (s *Supervisor) call(name string) error {
	before, err := rewrite(s.cfg.Hostname, func(string) string { return name + "\n" })
	if old := strings.TrimSpace(before); err == nil && old != "" && old != name {
		_, err = rewrite(s.cfg.Hosts, func(text string) string { return renamed(text, old, name) })
	}
	if err != nil {
		return fmt.Errorf("the host name %s cannot be written: %w", name, err)
	}
	return nil
}

// renamed replaces a name in the lines of a file like /etc/hosts.
func renamed(text, old, name string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		for i := 1; i < len(words); i++ {
			if words[i] == old {
				words[i] = name
				line = words[0] + "\t" + strings.Join(words[1:], " ") + "\n"
			}
		}
		out.WriteString(line)
	}
	return out.String()
}

// rewrite changes the content of a file in place, and returns what it was.
func rewrite(path string, change func(string) string) (before string, err error) {
	if path == "" {
		return "", nil
	}
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) || errors.Is(err, unix.ELOOP) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	raw, err := io.ReadAll(io.LimitReader(f, maxHosts))
	if err != nil {
		return "", err
	}
	before = string(raw)
	after := change(before)
	if after == before {
		return before, nil
	}
	if _, err := f.WriteAt([]byte(after), 0); err != nil {
		return before, err
	}
	return before, f.Truncate(int64(len(after)))
}
