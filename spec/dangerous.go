package spec

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/agbox/agbox/spec/document"
)

// danger is a path of the host that a sandbox may see only with allow_dangerous_mounts.
type danger struct {
	path string
	why  string
}

// dangers are refused, and so is everything below and above them: a path above them
// contains them.
var dangers = []danger{
	{"/proc", "that is the kernel's view of all processes of the host"},
	{"/sys", "that is the kernel's view of the host's devices"},
	{"/dev", "that has the devices of the host"},
	{"/boot", "that has the host's kernel"},
	{"/etc/shadow", "that has the host's password hashes"},
	{"/etc/sudoers", "that decides who is root on the host"},
	{"/etc/ssh", "that has the host's private keys"},
	{"/var/run/docker.sock", "who may write to the engine's socket is root on the host"},
	{"/run/docker.sock", "who may write to the engine's socket is root on the host"},
	{"/run/containerd", "who may write to the engine's socket is root on the host"},
	{"/var/run/containerd", "who may write to the engine's socket is root on the host"},
	{"/run/systemd", "who may write to systemd's socket is root on the host"},
	{"/var/run/systemd", "who may write to systemd's socket is root on the host"},
	{"/run/dbus", "who may write to the system's bus is root on the host"},
	{"/var/run/dbus", "who may write to the system's bus is root on the host"},
	{"/run/podman", "who may write to the engine's socket is root on the host"},
	{"/run/crio", "who may write to the engine's socket is root on the host"},
	{"/var/lib/docker", "that has the containers of the engine"},
	{"/var/lib/containerd", "that has the containers of the engine"},
}

// credentials are names of files and folders in which programs keep credentials. They are
// refused below any folder.
var credentials = []string{
	".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".netrc", ".git-credentials", ".password-store", ".pgpass",
	".npmrc", ".pypirc", ".cargo/credentials", ".cargo/credentials.toml", ".vault-token", ".terraform.d", ".oci",
	".config/containers", ".config/doctl", ".config/gcloud", ".config/gh", ".config/hub", ".config/op", ".config/rclone", ".config/sops", ".fly", ".thunderbird", ".config/google-chrome", ".config/chromium",
	".mozilla", ".local/share/keyrings", ".claude", ".claude.json", ".codex", ".gem/credentials", ".m2/settings.xml", ".boto", ".s3cfg", ".my.cnf",
}

// system are folders of the operating system. Nothing in them leaves the host, except
// below exempt ones.
var (
	system = []string{"/etc", "/usr", "/var", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}
	exempt = []string{"/var/tmp"}
)

// homeFolders hold the homes of people.
var homeFolders = []string{"/home", "/Users", "/var/home"}

// DangerousSource says why a path of the host must not leave it, as the end of a
// sentence, or returns "". The path is absolute and clean. If possible, the caller should
// also pass it with symbolic links resolved. The answer is the same for mounts and copies,
// except that a writable mount must not hold agbox's programs.
func DangerousSource(source string, host Host, writable bool) string {
	for _, check := range []func(string, Host) string{dangerOf, credentialsOf, homeOf, ownOf, foreignOf} {
		if why := check(source, host); why != "" {
			return why
		}
	}
	for _, program := range host.Binaries {
		if writable && within(program, source) {
			return "it holds " + program + ", which belongs to agbox itself"
		}
	}
	return ""
}

// dangerOf is DangerousSource for what gives control over the host.
func dangerOf(source string, _ Host) string {
	if source == "/" {
		return "it is the whole host"
	}
	for _, d := range dangers {
		switch {
		case within(source, d.path):
			return d.why
		case within(d.path, source):
			return "it holds " + d.path + ", and " + d.why
		}
	}
	switch path.Base(source) {
	case "docker.sock", "podman.sock", "containerd.sock":
		return "who may write to the engine's socket is root on the host"
	}
	if source == "/run/user" || path.Dir(source) == "/run/user" {
		return "it holds the sockets of a user's programs"
	}
	return ""
}

// credentialsOf is DangerousSource for keys and credentials.
func credentialsOf(source string, _ Host) string {
	slashed := source + "/"
	for _, name := range credentials {
		if strings.Contains(slashed, "/"+name+"/") {
			return "programs keep credentials in " + name
		}
	}
	if path.Base(source) == ".config" {
		return "programs keep credentials in it"
	}
	return ""
}

// homeOf is DangerousSource for whole homes.
func homeOf(source string, host Host) string {
	whole := source == "/root" || slices.Contains(homeFolders, source) || slices.Contains(homeFolders, path.Dir(source))
	for _, home := range append([]string{host.Home}, host.Homes...) {
		home = filepath.Clean(home)
		whole = whole || home != "." && home != "/" && within(home, source)
	}
	if whole {
		return "it holds a whole home, and with it credentials such as .ssh"
	}
	return ""
}

// ownOf is DangerousSource for agbox's own folders and programs.
func ownOf(source string, host Host) string {
	for _, dir := range host.Own {
		switch {
		case dir == "":
		case within(source, dir):
			return "it belongs to agbox itself"
		case within(dir, source):
			return "it holds " + dir + ", which belongs to agbox itself"
		}
	}
	if slices.Contains(host.Binaries, source) {
		return "it belongs to agbox itself"
	}
	return ""
}

// foreignOf is DangerousSource for folders of the system and homes of others.
func foreignOf(source string, host Host) string {
	in := func(folders []string) bool {
		return slices.ContainsFunc(folders, func(dir string) bool { return dir != "" && dir != "/" && within(source, filepath.Clean(dir)) })
	}
	if in(host.Homes) || in(host.Granted) || in(exempt) {
		return ""
	}
	for _, dir := range append([]string{"/root"}, homeFolders...) {
		if within(source, dir) {
			return "it is in the home of another user than that of agboxd"
		}
	}
	for _, dir := range system {
		if within(source, dir) {
			return "it is in " + dir + ", which belongs to the system"
		}
	}
	return ""
}

// CredentialBelow returns the names, relative to a folder, of what would make the folder
// a place of credentials if it existed there: a folder with .ssh is a home, and .cargo
// may hold a login.
func CredentialBelow(folder string) []string {
	below := []string{".ssh", ".gnupg"}
	for _, name := range credentials {
		if first, rest, ok := strings.Cut(name, "/"); ok && path.Base(folder) == first {
			below = append(below, rest)
		}
	}
	return below
}

// within reports whether a path is a folder or below it.
func within(p, dir string) bool { return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/") }

// sources refuses dangerous sources of everything that is mounted or copied into the
// primary, with one rule for both.
func (r *resolver) sources() {
	for i, m := range r.spec.GetMounts() {
		r.source("Mounting", m.GetSource(), m.GetWritable(), "mounts", i, "source")
	}
	for i, c := range r.spec.GetCopies() {
		if !r.endless(c.GetSource(), "copies", i, "source") {
			r.source("Copying", c.GetSource(), false, "copies", i, "source")
		}
	}
	for i, s := range r.spec.GetServices() {
		for j, c := range s.GetCopies() {
			if !r.endless(c.GetSource(), "services", i, "copies", j, "source") {
				r.source("Copying", c.GetSource(), false, "services", i, "copies", j, "source")
			}
		}
	}
	r.work()
	switch w := r.spec.GetWorkspace(); {
	case w == nil:
	case w.GetMount():
		r.source("Mounting", w.GetSource(), true, "workspace", "source")
	case !r.endless(w.GetSource(), "workspace", "source"):
		r.source("Copying", w.GetSource(), false, "workspace", "source")
	}
}

// work is sources for the work of the agent, which is copied too.
func (r *resolver) work() {
	if work := r.spec.GetAgent().GetWork(); work != "" && !r.endless(work, "agent", "work") {
		r.source("Copying", work, false, "agent", "work")
	}
}

// source refuses a dangerous source, unless the caller has allowed it.
func (r *resolver) source(doing, source string, writable bool, path ...any) {
	if r.spec.GetSecurity().GetAllowDangerousMounts() || !filepath.IsAbs(source) {
		return
	}
	host := r.Host
	host.Home = r.Request.GetHomeDir()
	if why := DangerousSource(filepath.Clean(source), host, writable); why != "" {
		r.problem(path, "%s", strings.TrimSuffix(Refusal(doing, shorten(source), why), "."))
	}
}

// Refusal is the sentence about a source that must not leave the host: doing is a word
// such as "Mounting", why the answer of DangerousSource.
func Refusal(doing, source, why string) string {
	return document.Quoting("%s %s is refused, because %s: name something else, or give the flag --allow-dangerous-mounts if you mean it.", doing, source, why)
}

// endless refuses to copy what has no end, or is no file at all. It reports whether it did.
func (r *resolver) endless(source string, path ...any) bool {
	for _, never := range []string{"/proc", "/sys", "/dev"} {
		if source == "/" || within(source, never) {
			r.problem(path, "%.200s cannot be copied, because it holds no ordinary files: name a folder of yours", source)
			return true
		}
	}
	return false
}

// shorten bounds a path in a sentence.
func shorten(text string) string { return fmt.Sprintf("%.200s", text) }
