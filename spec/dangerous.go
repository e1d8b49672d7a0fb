package spec

import (
	"path"
	"path/filepath"
	"strings"
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
	".config/gcloud", ".config/gh", ".config/hub", ".config/op", ".config/sops", ".config/google-chrome", ".config/chromium",
	".mozilla", ".local/share/keyrings", ".claude", ".claude.json", ".codex", ".gem/credentials", ".m2/settings.xml", ".boto", ".s3cfg", ".my.cnf",
}

// DangerousSource says why a path of the host must not be mounted, as the end of a
// sentence, or returns "". The path is absolute and clean. If possible, the caller should
// also pass it with symbolic links resolved. own are agbox's own folders. home is the
// caller's home, or empty.
func DangerousSource(source string, own []string, home string) string {
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
	slashed := source + "/"
	for _, name := range credentials {
		if strings.Contains(slashed, "/"+name+"/") {
			return "programs keep credentials in " + name
		}
	}
	if path.Base(source) == ".config" {
		return "programs keep credentials in it"
	}
	if home = filepath.Clean(home); home != "." && home != "/" && within(home, source) || source == "/root" || source == "/home" || source == "/Users" || path.Dir(source) == "/home" || path.Dir(source) == "/Users" {
		return "it holds a whole home, and with it credentials such as .ssh"
	}
	for _, dir := range own {
		switch {
		case dir == "":
		case within(source, dir):
			return "it belongs to agbox itself"
		case within(dir, source):
			return "it holds " + dir + ", which belongs to agbox itself"
		}
	}
	return ""
}

// within reports whether a path is a folder or below it.
func within(p, dir string) bool { return p == dir || dir == "/" || strings.HasPrefix(p, dir+"/") }

// mountSources refuses dangerous sources of everything that is mounted into the primary.
func (r *resolver) mountSources() {
	if r.spec.GetSecurity().GetAllowDangerousMounts() {
		return
	}
	for i, m := range r.spec.GetMounts() {
		r.mountSource(m.GetSource(), "mounts", i, "source")
	}
	if w := r.spec.GetWorkspace(); w.GetMount() {
		r.mountSource(w.GetSource(), "workspace", "source")
	}
}

func (r *resolver) mountSource(source string, path ...any) {
	if !filepath.IsAbs(source) {
		return
	}
	if why := DangerousSource(filepath.Clean(source), r.Own, r.Request.GetHomeDir()); why != "" {
		r.problem(path, "Mounting %.200s is refused, because %s: name something narrower, or set security.allow_dangerous_mounts if you mean it", source, why)
	}
}

// copySource refuses sources that are endless, or not files at all.
func (r *resolver) copySource(source string, path ...any) {
	for _, never := range []string{"/proc", "/sys", "/dev"} {
		if source == "/" || within(source, never) {
			r.problem(path, "%.200s cannot be copied, because it holds no ordinary files: name a folder of yours", source)
			return
		}
	}
}
