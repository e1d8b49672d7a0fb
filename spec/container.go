package spec

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
)

// limited has the fields that the primary and a service have in common.
type limited interface {
	ProtoReflect() protoreflect.Message
	GetImage() string
	GetCommand() []string
	GetCpuLimit() string
	GetMemoryLimit() string
	GetDiskLimit() string
	GetShmSize() string
	GetGpus() string
	GetUlimits() []*agboxv1.UlimitSpec
	GetTmpfs() []*agboxv1.TmpfsSpec
	GetSecurity() *agboxv1.SecuritySpec
	GetEnvs() map[string]string
	GetSecretEnvs() []string
}

// container checks what the primary and a service have in common. path is its path in the
// spec.
func (r *resolver) container(c limited, path []any) {
	at := func(steps ...any) []any { return slices.Concat(path, steps) }
	if image := c.GetImage(); image != "" {
		if _, err := reference.ParseAnyReference(image); err != nil {
			r.problem(at("image"), "%.200q is not the name of an image: write it in lower case as name, name:tag or name@sha256:digest", image)
		}
	}
	if cmd := c.GetCommand(); len(cmd) > 0 && cmd[0] == "" {
		r.problem(at("command", 0), "The command has no name: write one first, for example [sleep, infinity]")
	}
	for i, word := range c.GetCommand() {
		if strings.Contains(word, "\x00") {
			r.problem(at("command", i), "The word has a NUL byte, which no command can take: remove it")
		}
	}
	r.cpus(c.GetCpuLimit(), at("cpu_limit"))
	if c.GetMemoryLimit() != "unlimited" {
		r.size(c.GetMemoryLimit(), LeastMemory, at("memory_limit"))
	}
	r.size(c.GetDiskLimit(), 1, at("disk_limit"))
	r.size(c.GetShmSize(), 1, at("shm_size"))
	for i, t := range c.GetTmpfs() {
		r.size(t.GetSize(), 1, at("tmpfs", i, "size"))
	}
	r.gpus(c.GetGpus(), at("gpus"))
	r.ulimits(c.GetUlimits(), at("ulimits"))
	r.security(c.GetSecurity(), at("security"))
	r.secrets(c, path)
}

// secrets checks the marks of secret variables, and that no value is the text that stands
// for one.
func (r *resolver) secrets(c limited, path []any) {
	for i, name := range c.GetSecretEnvs() {
		at := append(slices.Clip(path), "secret_envs", i)
		if _, set := c.GetEnvs()[name]; !set {
			r.problem(at, "%.80q is not a variable under envs: add it there, or remove it here", name)
		}
		if slices.Contains(process.GoVariables, name) {
			r.problem(at, "%.80q sets the Go runtime and cannot be secret: remove it here", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.GetEnvs())) {
		if c.GetEnvs()[name] == secrets.Placeholder && secrets.Is(name, c.GetSecretEnvs()) {
			r.problem(append(slices.Clip(path), "envs", name), "%q is what agbox shows instead of a secret value: write the value itself", secrets.Placeholder)
		}
	}
}

// entrypoint checks the entrypoint of a container. [""] means none.
func (r *resolver) entrypoint(c interface {
	GetEntrypoint() []string
	GetCommand() []string
}, path []any) {
	words, at := c.GetEntrypoint(), append(slices.Clip(path), "entrypoint")
	if len(words) > 1 && words[0] == "" {
		r.problem(append(at, 0), "The entrypoint has no name: write a program first, or \"\" alone for no entrypoint")
	}
	if len(words) == 1 && words[0] == "" && len(c.GetCommand()) == 0 {
		r.problem(at, "Without an entrypoint there is no command: give one, or leave entrypoint out")
	}
	for i, word := range words {
		if strings.Contains(word, "\x00") {
			r.problem(append(slices.Clip(at), i), "The word has a NUL byte, which no command can take: remove it")
		}
	}
}

// LeastMemory is the engine's minimum of a memory limit, in bytes.
const LeastMemory = 6 << 20

func (r *resolver) cpus(text string, path []any) {
	if text == "" {
		return
	}
	if _, err := document.ParseCPUs(text); err != nil {
		r.problem(path, "%s", document.Sentence(err))
	}
}

func (r *resolver) size(text string, least int64, path []any) {
	if text == "" {
		return
	}
	n, err := document.ParseBytes(text)
	switch {
	case err != nil:
		r.problem(path, "%s", document.Sentence(err))
	case n < least && least == LeastMemory:
		r.problem(path, "%q is less than the 6m that the engine needs: write more, for example 512m", text)
	case n < least:
		r.problem(path, "%q leaves nothing: write more, for example 64m, or leave it out", text)
	}
}

func (r *resolver) gpus(text string, path []any) {
	if text == "" || text == "all" {
		return
	}
	if n, err := strconv.Atoi(text); err == nil {
		if n <= 0 {
			r.problem(path, "%q is no number of GPUs: write 1 or more, all, or leave it out", text)
		}
		return
	}
	seen := make(map[string]bool)
	for id := range strings.SplitSeq(text, ",") {
		switch {
		case id == "" || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/") != "":
			r.problem(path, "%.80q does not name GPUs: write all, a number, or device ids separated by commas, for example GPU-3a23c669,GPU-8fe4b1c2", text)
			return
		case seen[id]:
			r.problem(path, "%.80q names the GPU %s twice: name it once", text, id)
			return
		}
		seen[id] = true
	}
}

func (r *resolver) ulimits(all []*agboxv1.UlimitSpec, path []any) {
	seen := make(map[string]int)
	for i, u := range all {
		at := append(slices.Clone(path), i)
		if before, twice := seen[u.GetName()]; twice {
			r.problem(append(at, "name"), "The ulimit %s is set already (%s): remove one of the two", u.GetName(), r.whereIs(append(slices.Clone(path), before)))
		}
		seen[u.GetName()] = i
		if u.Hard != nil && u.GetHard() != -1 && (u.GetSoft() > u.GetHard() || u.GetSoft() == -1) {
			r.problem(append(at, "soft"), "The soft limit %d is above the hard one, %d: raise hard or lower soft", u.GetSoft(), u.GetHard())
		}
	}
}

// capabilities are those of Linux 6.x, without "CAP_".
var capabilities = strings.Fields(`AUDIT_CONTROL AUDIT_READ AUDIT_WRITE BLOCK_SUSPEND BPF CHECKPOINT_RESTORE CHOWN
	DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID IPC_LOCK IPC_OWNER KILL LEASE LINUX_IMMUTABLE MAC_ADMIN MAC_OVERRIDE
	MKNOD NET_ADMIN NET_BIND_SERVICE NET_BROADCAST NET_RAW PERFMON SETFCAP SETGID SETPCAP SETUID SYSLOG SYS_ADMIN
	SYS_BOOT SYS_CHROOT SYS_MODULE SYS_NICE SYS_PACCT SYS_PTRACE SYS_RAWIO SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG
	WAKE_ALARM ALL`)

func (r *resolver) security(s *agboxv1.SecuritySpec, path []any) {
	for _, field := range []struct {
		name string
		list []string
	}{{"cap_add", s.GetCapAdd()}, {"cap_drop", s.GetCapDrop()}} {
		for i, name := range field.list {
			at := append(slices.Clone(path), field.name, i)
			if bare, prefixed := strings.CutPrefix(name, "CAP_"); prefixed {
				r.problem(at, "%q has the prefix CAP_: write %s", name, bare)
			} else if upper := strings.ToUpper(name); upper != name && slices.Contains(capabilities, strings.TrimPrefix(upper, "CAP_")) {
				r.problem(at, "%q is written in upper case without CAP_: write %s", name, strings.TrimPrefix(upper, "CAP_"))
			} else if !slices.Contains(capabilities, name) {
				r.problem(at, "%.80q is not a capability of Linux: write one as in capabilities(7), without CAP_, for example SYS_PTRACE", name)
			}
			if slices.Contains(field.list[:i], name) {
				r.problem(at, "%s stands in the list twice: remove one", name)
			}
		}
	}
	for i, name := range s.GetCapAdd() {
		if slices.Contains(s.GetCapDrop(), name) {
			r.problem(append(slices.Clone(path), "cap_add", i), "%s is both added and dropped: remove one of the two", name)
		}
	}
	for i, device := range s.GetDevices() {
		if strings.Contains(device, "/../") || strings.HasSuffix(device, "/..") {
			r.problem(append(slices.Clone(path), "devices", i), "%.80q leaves /dev by '..': write the device itself", device)
		}
	}
}

func (r *resolver) blank(commands []string, path ...any) {
	for i, c := range commands {
		if strings.TrimSpace(c) == "" {
			r.problem(append(slices.Clone(path), i), "The command is empty: write one, or remove the line")
		}
	}
}
