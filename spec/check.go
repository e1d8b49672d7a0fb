package spec

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"buf.build/gen/go/bufbuild/protovalidate/protocolbuffers/go/buf/validate"
	"buf.build/go/protovalidate"
	"github.com/distribution/reference"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/agbox/agbox/internal/process"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
	"github.com/agbox/agbox/spec/notation"
)

// check reports all problems of the merged spec.
func (r *resolver) check() {
	s := r.spec
	if s.GetImage() == "" && s.GetBuild() == nil && !r.imageTold {
		r.missingImage()
	}
	r.builds()
	r.container(s, nil)
	r.entrypoint(s, nil)
	r.sources()
	r.primaryTargets()
	r.hostname()
	r.blank(s.GetPostCreate(), "post_create")
	r.services()
	r.ports()
	r.internal()
	r.agent()
	// Last, because the more specific checks have better sentences.
	r.rules()
	r.onlyByFlag()
}

func (r *resolver) missingImage() {
	at := locate(r.origin, "image")
	if r.noPrimary {
		r.report.Problem(at, "A sandbox needs an image, and no service of the compose file is its primary: write 'x-agbox: primary' into the service that is, name it with --compose-primary or as the primary of the base, or give an image")
		return
	}
	if at.File == "" {
		r.report.Problem(&document.Origin{}, "Give an image")
		return
	}
	r.report.Problem(at, "A sandbox needs an image: write for example 'image: debian:12', or give one with --image")
}

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
		at := append(path[:len(path):len(path)], "secret_envs", i)
		if _, set := c.GetEnvs()[name]; !set {
			r.problem(at, "%.80q is not a variable under envs: add it there, or remove it here", name)
		}
		if slices.Contains(process.GoVariables, name) {
			r.problem(at, "%.80q sets the Go runtime and cannot be secret: remove it here", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.GetEnvs())) {
		if c.GetEnvs()[name] == secrets.Placeholder && secrets.Is(name, c.GetSecretEnvs()) {
			r.problem(append(path[:len(path):len(path)], "envs", name), "%q is what agbox shows instead of a secret value: write the value itself", secrets.Placeholder)
		}
	}
}

// entrypoint checks the entrypoint of a container. [""] means none.
func (r *resolver) entrypoint(c interface {
	GetEntrypoint() []string
	GetCommand() []string
}, path []any) {
	words, at := c.GetEntrypoint(), append(path[:len(path):len(path)], "entrypoint")
	if len(words) > 1 && words[0] == "" {
		r.problem(append(at, 0), "The entrypoint has no name: write a program first, or \"\" alone for no entrypoint")
	}
	if len(words) == 1 && words[0] == "" && len(c.GetCommand()) == 0 {
		r.problem(at, "Without an entrypoint there is no command: give one, or leave entrypoint out")
	}
	for i, word := range words {
		if strings.Contains(word, "\x00") {
			r.problem(append(at[:len(at):len(at)], i), "The word has a NUL byte, which no command can take: remove it")
		}
	}
}

// LeastMemory is the engine's minimum of a memory limit, in bytes.
const LeastMemory = 6 << 20

func (r *resolver) cpus(text string, path []any) {
	if text == "" {
		return
	}
	if _, err := notation.CPUs(text); err != nil {
		r.problem(path, "%s", document.Sentence(err))
	}
}

func (r *resolver) size(text string, least int64, path []any) {
	if text == "" {
		return
	}
	n, err := notation.Bytes(text)
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

// whereIs names a path of the spec for a sentence.
func (r *resolver) whereIs(path []any) string {
	at := locate(r.origin, path...)
	switch {
	case at.File == "":
		return at.Path
	case at.Line == 0:
		return at.File
	}
	return at.File + ":" + strconv.Itoa(at.Line)
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

// hostname refuses an address, which would be confusing as a host name.
func (r *resolver) hostname() {
	for _, field := range []string{"hostname", "name"} {
		value := r.spec.GetHostname()
		if field == "name" {
			value = r.spec.GetName()
		}
		if _, err := netip.ParseAddr(value); err == nil || value == "localhost" {
			r.problem([]any{field}, "%q has a meaning of its own on a network: choose another name", value)
		}
	}
}

// rules checks the spec against the rules in the .proto file.
func (r *resolver) rules() {
	err := r.Rules.Validate(r.spec)
	var bad *protovalidate.ValidationError
	if err != nil && !errors.As(err, &bad) {
		r.report.Problem(&document.Origin{}, "The description cannot be checked (%v): please report that", err)
		return
	}
	if bad == nil {
		return
	}
	for _, v := range bad.Violations {
		var path []any
		var field protoreflect.FieldDescriptor
		message := r.spec.ProtoReflect().Descriptor()
		for _, e := range v.Proto.GetField().GetElements() {
			path = append(path, e.GetFieldName())
			field = message.Fields().ByName(protoreflect.Name(e.GetFieldName()))
			message = field.Message()
			switch e.WhichSubscript() {
			case validate.FieldPathElement_Index_case:
				path = append(path, int(e.GetIndex()))
			case validate.FieldPathElement_StringKey_case:
				path = append(path, e.GetStringKey())
			}
		}
		r.overlong = r.overlong || v.Proto.GetRuleId() == "repeated.max_items"
		r.problem(path, "%s", sentence(v, field))
	}
}

// problem reports the field at a path of the merged spec.
func (r *resolver) problem(path []any, format string, args ...any) {
	r.report.Problem(locate(r.origin, path...), format, args...)
}

// patterns describe regular expressions in words. The key is the field's name within its
// message or, for all messages, the name alone.
var patterns = map[string]string{
	"AgentSpec.name":         "lower-case letters, digits, '_', '.' and '-', at most 63, beginning with a letter or digit",
	"AgentSpec.class":        "lower-case letters, digits, '_', '.' and '-', at most 63, beginning with a letter or digit",
	"AgentSpec.work":         "a path without a NUL byte",
	"cost_usd":               "US dollars with up to 6 decimals, for example 5.00",
	"CreateSpec.name":        "lower-case letters, digits, '_', '.' and '-', at most 63, beginning with a letter or digit",
	"VolumeSpec.name":        "lower-case letters, digits, '_', '.' and '-', at most 63, beginning with a letter or digit",
	"ServiceSpec.name":       "lower-case letters, digits, '_' and '-', at most 63, beginning and ending with a letter or digit, because it is a host name",
	"ServiceDependency.name": "the name of a service",
	"hostname":               "letters, digits and '-', at most 63, beginning and ending with a letter or digit",
	"target":                 "an absolute path, for example /data",
	"MountSpec.target":       "an absolute path or one below ~, the home of the user inside, for example /data or ~/data",
	"CopySpec.target":        "an absolute path or one below ~, the home of the user inside, for example /data or ~/data",
	"WorkspaceSpec.target":   "an absolute path or one below ~, the home of the user inside, for example /data or ~/data",
	"match_user":             "an absolute path, for example /workspace",
	"working_dir":            "an absolute path, for example /workspace",
	"source":                 "a path without a NUL byte",
	"mode":                   "an octal mode of 3 or 4 digits, for example 1777",
	"platform":               "an operating system and an architecture in lower case, for example linux/arm64",
	"user":                   "user, uid, user:group or uid:gid, at most 128 characters",
	"owner":                  "uid or uid:gid in numbers, for example 1000:1000",
	"cap_add":                "a capability in upper case without CAP_, for example SYS_PTRACE",
	"cap_drop":               "a capability in upper case without CAP_, for example NET_RAW, or ALL",
	"devices":                "a path below /dev without other characters than letters, digits, '_', '.', '/' and '-', for example /dev/kvm",
	"host_ip":                "an IP address, for example 127.0.0.1",
	"envs":                   "text without a NUL byte, under a name without '='",
	"post_create":            "text without a NUL byte",
	"post_start_on_primary":  "text without a NUL byte",
	"HealthcheckConfig.test": "text without a NUL byte",
	"command":                "text without a NUL byte",
	"entrypoint":             "text without a NUL byte",
	"WorkspaceSpec.source":   "a path without a NUL byte",
	"exclude_patterns":       "text without a NUL byte",
}

// sentence says what is wrong and what to do.
func sentence(v *protovalidate.Violation, field protoreflect.FieldDescriptor) string {
	limit := ""
	if v.RuleValue.IsValid() {
		limit = v.RuleValue.String()
	}
	got := shown(v)
	if field.IsMap() && !v.Proto.GetForKey() {
		got = "The value" // it may be secret, and the daemon logs the problem
	}
	if want := pattern(field); v.FieldValue.IsValid() && !v.Proto.GetForKey() && v.Proto.GetRuleId() == "string.pattern" && v.FieldValue.String() == "" && want != "" {
		return "There is no value: write " + want
	}
	switch id := v.Proto.GetRuleId(); id {
	case "string.pattern":
		if want := pattern(field); want != "" {
			if v.Proto.GetForKey() {
				return fmt.Sprintf("The name %s is not allowed here: write %s", got, want)
			}
			return fmt.Sprintf("%s is not allowed here: write %s", got, want)
		}
	case "string.max_len", "string.max_bytes":
		return fmt.Sprintf("The text is longer than %s characters: shorten it", limit)
	case "string.min_len", "required":
		return "There is no value: write one"
	case "repeated.max_items":
		return fmt.Sprintf("The list has more than %s items: remove some", limit)
	case "map.max_pairs":
		return fmt.Sprintf("The map has more than %s keys: remove some", limit)
	case "enum.defined_only":
		if field.Enum() != nil {
			return fmt.Sprintf("%s is not a value of this field: there are %s", got, strings.Join(document.EnumWords(field.Enum()), ", "))
		}
	case "string.in":
		return fmt.Sprintf("%s is not known: there are core, cpu, data, fsize, locks, memlock, msgqueue, nice, nofile, nproc, rss, rtprio, rttime, sigpending and stack", got)
	case "uint32.gte_lte":
		if got == "0" {
			return "There is no number, or 0: write one " + bounds(v)
		}
		return fmt.Sprintf("%s is not allowed here: write a number %s", got, bounds(v))
	case "uint32.lte":
		return fmt.Sprintf("%s is not allowed here: write a number up to %s", got, limit)
	case "duration.gte_lte":
		return fmt.Sprintf("The time is not possible here: write one %s", bounds(v))
	case "duration.gt":
		return "The time is not above zero: write a longer one, or leave it out"
	case "duration.gte":
		return "The time is below zero: write 0s or more"
	}
	return fmt.Sprintf("%s is not allowed here: it %s", got, strings.TrimPrefix(v.Proto.GetMessage(), "value "))
}

// bounds says between which values a value must be.
func bounds(v *protovalidate.Violation) string {
	return strings.NewReplacer("must be greater than or equal to ", "from ", " and less than or equal to ", " to ").Replace(v.Proto.GetMessage())
}

func pattern(f protoreflect.FieldDescriptor) string {
	if want := patterns[string(f.Parent().Name())+"."+string(f.Name())]; want != "" {
		return want
	}
	return patterns[string(f.Name())]
}

// shown returns the value that was refused.
func shown(v *protovalidate.Violation) string {
	if !v.FieldValue.IsValid() {
		return "This"
	}
	switch value := v.FieldValue.Interface().(type) {
	case string:
		return fmt.Sprintf("%.80q", value)
	case protoreflect.List, protoreflect.Map, protoreflect.Message:
		return "This"
	default:
		return fmt.Sprint(value)
	}
}

// onlyByFlag refuses settings that files which came with a folder must not contain. The
// author of such a file may be a stranger, or an agent in an earlier sandbox.
func (r *resolver) onlyByFlag() {
	if !r.Request.GetUntrustedFiles() {
		return
	}
	r.securityByFlag(r.spec.GetSecurity(), nil)
	for _, key := range slices.Sorted(maps.Keys(r.spec.GetLabels())) {
		// The sandboxes of a folder are found by them.
		if at := []any{"labels", key}; strings.HasPrefix(key, "agbox.") && r.fromFile(at) {
			r.problem(at, `Labels that begin with "agbox." are set by agbox itself: remove it`)
		}
	}
	for i, p := range r.spec.GetPorts() {
		r.portByFlag(p, []any{"ports", i})
	}
	for i, s := range r.spec.GetServices() {
		r.securityByFlag(s.GetSecurity(), []any{"services", i})
		for j, p := range s.GetPorts() {
			r.portByFlag(p, []any{"services", i, "ports", j})
		}
	}
}

// securityByFlag refuses settings that weaken the isolation. path is that of the
// container.
func (r *resolver) securityByFlag(s *agboxv1.SecuritySpec, path []any) {
	refuse := func(asked bool, flag string, steps ...any) {
		at := append(append(path[:len(path):len(path)], "security"), steps...)
		if !asked || !r.fromFile(at) {
			return
		}
		if len(path) > 0 {
			r.problem(at, "A file must not ask for this, because anybody may have written it: remove it, or describe the service by the flag --service if you want it")
			return
		}
		r.problem(at, "A file must not ask for this, because anybody may have written it: remove it, or give the flag %s if you want it", flag)
	}
	refuse(s.GetPrivileged(), "--privileged", "privileged")
	refuse(s.GetSeccompUnconfined(), "--seccomp-unconfined", "seccomp_unconfined")
	refuse(s.GetAllowDangerousMounts(), "--allow-dangerous-mounts", "allow_dangerous_mounts")
	refuse(s.GetWritableConfig(), "--writable-config", "writable_config")
	for i, name := range s.GetCapAdd() {
		refuse(true, "--cap-add "+name, "cap_add", i)
	}
	for i, name := range s.GetDevices() {
		refuse(true, "--device "+name, "devices", i)
	}
}

func (r *resolver) portByFlag(p *agboxv1.PortMapping, path []any) {
	if p.GetHostIp() == "" || !r.fromFile(append(path, "host_ip")) {
		return
	}
	if ip, err := netip.ParseAddr(p.GetHostIp()); err != nil || ip.IsLoopback() {
		return // an invalid address is reported elsewhere
	}
	r.problem(append(path, "host_ip"), "A file must not publish a port beyond this machine, because anybody may have written it: remove the address, or give the flag --publish %s if you want it", publishFlag(p))
}

// publishFlag is the value of the flag --publish for a port.
func publishFlag(p *agboxv1.PortMapping) string {
	text := strconv.FormatUint(uint64(p.GetContainerPort()), 10)
	if p.GetHostPort() != 0 {
		text = strconv.FormatUint(uint64(p.GetHostPort()), 10) + ":" + text
	} else {
		text = ":" + text
	}
	if p.GetProtocol() != agboxv1.PortProtocol_PORT_PROTOCOL_TCP {
		text += "/" + protocol(p)
	}
	if strings.Contains(p.GetHostIp(), ":") {
		return "[" + p.GetHostIp() + "]:" + text
	}
	return p.GetHostIp() + ":" + text
}

// fromFile reports whether a field comes from a file and not from the caller.
func (r *resolver) fromFile(path []any) bool { return locate(r.origin, path...).File != "" }
