package hostfiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// PolicyPath is where the policy is.
const PolicyPath = "/etc/agbox/policy.yaml"

// Policy is the operator's policy of this host: an upper bound for all sandboxes of any user. It
// belongs to root; nobody else can change it.
type Policy struct {
	// File is the path of the policy. Found is false if there is none; then nothing is
	// bounded.
	File  string
	Found bool
	// Writable are the folders of which parts may be mounted writable; nil means no bound.
	Writable []string
	// ReadOnly are the folders of which parts may also be mounted read-only and copied; nil
	// means no bound.
	ReadOnly []string
	// Denied are never mounted or copied, nor what is below or above them.
	Denied []string
	// Covers are names that are read-only in writable mounts, besides those of package covers.
	Covers []string
	// Trusted are the folders whose sandbox files the CLI uses without a question.
	Trusted []string
	// The following say what a caller may ask for:
	// allow_dangerous_mounts; devices and GPUs; privileged, added capabilities and no seccomp
	// filter; writable_config. HostAccess is allow_host, and that sandboxes may run without the
	// rules that keep them from the addresses of the host.
	Dangerous, Devices, Privileged, WritableConfig, HostAccess bool
	// lines has the line of each setting of the file.
	lines map[string]int
}

// NoPolicy bounds nothing.
func NoPolicy() *Policy {
	return &Policy{File: PolicyPath, Dangerous: true, Devices: true, Privileged: true, WritableConfig: true, HostAccess: true}
}

// policyError is a policy that is not used. A daemon with it does not start.
func policyError(path, format string, args ...any) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_INVALID_REQUEST, "The policy %s cannot be used: %s", path, fmt.Sprintf(format, args...))
}

// LoadPolicy reads a policy; home is what "~" in it stands for. The file may be missing. It and
// its folders must belong to root and not be writable by others.
func LoadPolicy(path, home string) (*Policy, error) { return loadPolicy(path, home, 0) }

// loadPolicy is LoadPolicy for another owner than root.
func loadPolicy(path, home string, owner uint32) (*Policy, error) {
	p := NoPolicy()
	p.File = path
	raw, err := readPolicy(path, owner)
	if err != nil || raw == nil {
		return p, err
	}
	p.Found, p.lines = true, make(map[string]int)
	report := new(document.Report)
	if root := document.YAML(path, raw, report); root != nil {
		p.take(root, home, report)
	}
	if len(report.Problems) == 0 {
		return p, nil
	}
	var lines []string
	for _, one := range report.Problems {
		lines = append(lines, fmt.Sprintf("\n  Line %d: %s", one.GetLine(), one.GetMessage()))
	}
	return nil, policyError(path, "correct or remove it.%s", strings.Join(lines, ""))
}

// readPolicy reads the file after it has checked it; nil if there is none.
func readPolicy(path string, owner uint32) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case errors.Is(err, unix.ELOOP):
		return nil, policyError(path, "it is a symbolic link. Put the file itself there.")
	case errors.Is(err, unix.EACCES):
		return nil, policyError(path, "this user may not read it. Make it and its folder readable for everybody: chmod a+rX.")
	case err != nil:
		return nil, policyError(path, "%v.", err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close() // only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, policyError(path, "%v.", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, policyError(path, "it is not a regular file.")
	}
	if err := checkPolicyOwner(path, path, st, owner); err != nil {
		return nil, err
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		if err := unix.Stat(dir, &st); err != nil {
			return nil, policyError(path, "%s: %v.", dir, err)
		}
		if err := checkPolicyOwner(path, dir, st, owner); err != nil {
			return nil, err
		}
		if dir == "/" {
			break
		}
	}
	raw, err := io.ReadAll(io.LimitReader(file, document.MaxBytes+1))
	if err != nil {
		return nil, policyError(path, "%v.", err)
	}
	if raw == nil {
		raw = []byte{}
	}
	return raw, nil
}

// checkPolicyOwner refuses a file or folder that others than the owner, or root, can change. In a
// sticky folder nobody can replace the files of others.
func checkPolicyOwner(path, name string, st unix.Stat_t, owner uint32) error {
	sticky := st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&unix.S_ISVTX != 0
	switch {
	case st.Uid != owner && st.Uid != 0:
		return policyError(path, "%s belongs to user %d. Give it to root: chown root %[1]s.", name, st.Uid)
	case st.Mode&0o022 != 0 && !sticky:
		return policyError(path, "others than its owner may write to %s. Take that away: chmod go-w %[1]s.", name)
	}
	return nil
}

// policyList is a setting that is a list.
type policyList struct {
	to *[]string
	// paths is true for folders of the host, false for names in a project.
	paths bool
}

// settings are all settings, in the order in which they are shown.
func (p *Policy) settings() (names []string, switches map[string]*bool, lists map[string]policyList) {
	switches = map[string]*bool{
		"allow.dangerous_mounts": &p.Dangerous, "allow.devices": &p.Devices, "allow.privileged": &p.Privileged, "allow.writable_config": &p.WritableConfig,
		"allow.host_access": &p.HostAccess,
	}
	lists = map[string]policyList{
		"mounts.writable": {&p.Writable, true}, "mounts.read_only": {&p.ReadOnly, true}, "mounts.denied": {&p.Denied, true},
		"covers": {&p.Covers, false}, "trusted_folders": {&p.Trusted, true},
	}
	names = []string{
		"allow.dangerous_mounts", "allow.devices", "allow.privileged", "allow.writable_config", "allow.host_access",
		"mounts.writable", "mounts.read_only", "mounts.denied", "covers", "trusted_folders",
	}
	return names, switches, lists
}

// take reads all settings of the file.
func (p *Policy) take(root *document.Node, home string, report *document.Report) {
	var walk func(node *document.Node, prefix string)
	walk = func(node *document.Node, prefix string) {
		if node.Kind == document.Null {
			return
		}
		if node.Kind != document.Map {
			report.Problem(&document.Origin{Line: node.Line, Column: node.Column}, "Here should be settings, such as \"denied: [/srv/secret]\".")
			return
		}
		for _, e := range node.Entries {
			name := prefix + e.Key.Text
			if name == "allow" || name == "mounts" {
				walk(e.Value, name+".")
				continue
			}
			if problem := p.set(name, e.Value, home); problem != "" {
				report.Problem(&document.Origin{Line: e.Key.Line, Column: e.Key.Column}, "%s", problem)
			}
			p.lines[name] = e.Key.Line
		}
	}
	walk(root, "")
}

// set sets one setting and returns its problem as a sentence; empty if there is none.
func (p *Policy) set(name string, value *document.Node, home string) string {
	names, switches, lists := p.settings()
	if _, twice := p.lines[name]; twice {
		return fmt.Sprintf("%s is given twice: remove one.", name)
	}
	if to, ok := switches[name]; ok {
		if value.Text != "true" && value.Text != "false" {
			return fmt.Sprintf("%s is true or false.", name)
		}
		*to = value.Text == "true"
		return ""
	}
	to, ok := lists[name]
	if !ok {
		return fmt.Sprintf("There is no setting %q; the settings are %s.", name, strings.Join(names, ", "))
	}
	if value.Kind != document.List {
		return fmt.Sprintf("%s is a list, such as [%s].", name, map[bool]string{true: "/srv/projects", false: "Makefile"}[to.paths])
	}
	all := make([]string, 0, len(value.Items)) // an empty list is a bound, too
	for _, item := range value.Items {
		text := item.Text
		if to.paths && (text == "~" || strings.HasPrefix(text, "~/")) {
			text = filepath.Join(home, text[1:])
		}
		switch {
		case to.paths && (!filepath.IsAbs(text) || filepath.Clean(text) == "/"):
			return fmt.Sprintf("%q in %s is not an absolute path of a folder below /.", item.Text, name)
		case !to.paths && (text == "" || !fs.ValidPath(text) || text == "."):
			return fmt.Sprintf("%q in %s is not a name in a project, such as .husky or tools/run.", item.Text, name)
		}
		all = append(all, filepath.Clean(text))
	}
	*to.to = all
	return ""
}

// Granted are the folders that the policy opens, whatever they belong to.
func (p *Policy) Granted() []string { return slices.Concat(p.Writable, p.ReadOnly) }

// Refuses says why a path without symbolic links must not leave the host, as the end of a
// sentence, or returns "". Built-in tools are bound by denied paths only.
func (p *Policy) Refuses(path string, writable, tool bool) string {
	for _, dir := range resolved(p.Denied) {
		switch {
		case within(path, dir):
			return fmt.Sprintf("the operator's policy %s denies %s", p.File, dir)
		case within(dir, path):
			return fmt.Sprintf("it holds %s, which the operator's policy %s denies", dir, p.File)
		}
	}
	switch {
	case tool:
	case writable && p.Writable != nil && !grants(p.Writable, path):
		return fmt.Sprintf("the operator's policy %s allows writable mounts only in: %s", p.File, sentence(p.Writable))
	case !writable && p.ReadOnly != nil && !grants(p.Granted(), path):
		return fmt.Sprintf("the operator's policy %s allows mounts and copies only from: %s", p.File, sentence(p.Granted()))
	}
	return ""
}

// Opens reports whether a path without symbolic links is in a folder that may be mounted
// writable even if a sandbox file asks for it.
func (p *Policy) Opens(path string) bool {
	return grants(p.Writable, path)
}

// Trusts reports whether the sandbox files of a folder are used without a question.
func (p *Policy) Trusts(folder string) bool {
	real, err := filepath.EvalSymlinks(folder)
	return err == nil && grants(p.Trusted, real)
}

func sentence(folders []string) string {
	if len(folders) == 0 {
		return "no folder"
	}
	return strings.Join(folders, ", ")
}

// grants reports whether a path is in one of the folders. A link to / grants nothing, as / itself
// may not be given.
func grants(folders []string, path string) bool {
	return slices.ContainsFunc(resolved(folders), func(dir string) bool { return dir != "/" && within(path, dir) })
}

// resolved adds to folders what their symbolic links lead to.
func resolved(folders []string) []string {
	all := slices.Clone(folders)
	for _, dir := range folders {
		if real, err := filepath.EvalSymlinks(dir); err == nil && real != dir {
			all = append(all, real)
		}
	}
	return all
}

// Show writes the policy in the format of its file, with the source of each setting.
func (p *Policy) Show() string {
	var b strings.Builder
	state := ""
	if !p.Found {
		state = " (missing)"
	}
	fmt.Fprintf(&b, "# %s%s\n", p.File, state)
	names, switches, lists := p.settings()
	group := ""
	for _, name := range names {
		key, indent := name, ""
		if above, below, ok := strings.Cut(name, "."); ok {
			if above != group {
				fmt.Fprintf(&b, "%s:\n", above)
			}
			group, key, indent = above, below, "  "
		}
		source := "default"
		if line, ok := p.lines[name]; ok {
			source = fmt.Sprintf("line %d", line)
		}
		if to, ok := switches[name]; ok {
			fmt.Fprintf(&b, "%s%s: %v # %s\n", indent, key, *to, source)
			continue
		}
		all := *lists[name].to
		if all == nil {
			fmt.Fprintf(&b, "%s# %s: %s\n", indent, key, source)
			continue
		}
		quoted := make([]string, len(all))
		for i, one := range all {
			quoted[i] = fmt.Sprintf("%q", one)
		}
		fmt.Fprintf(&b, "%s%s: [%s] # %s\n", indent, key, strings.Join(quoted, ", "), source)
	}
	return b.String()
}

// Forbidden returns the fields of a primary or a service that ask for what the policy
// allows nobody, each as the names of its path, outermost first.
func (p *Policy) Forbidden(s *agboxv1.SecuritySpec, gpus string) (fields [][]string) {
	look := func(asked, allowed bool, field ...string) {
		if asked && !allowed {
			fields = append(fields, field)
		}
	}
	look(s.GetAllowDangerousMounts(), p.Dangerous, "security", "allow_dangerous_mounts")
	look(s.GetWritableConfig(), p.WritableConfig, "security", "writable_config")
	look(s.GetAllowHost(), p.HostAccess, "security", "allow_host")
	look(s.GetPrivileged(), p.Privileged, "security", "privileged")
	look(s.GetSeccompUnconfined(), p.Privileged, "security", "seccomp_unconfined")
	look(len(s.GetCapAdd()) > 0, p.Privileged, "security", "cap_add")
	look(len(s.GetDevices()) > 0, p.Devices, "security", "devices")
	look(gpus != "", p.Devices, "gpus")
	return fields
}

// within reports whether a path is a folder or below it.
func within(p, dir string) bool {
	return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/")
}
