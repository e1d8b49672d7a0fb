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
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec/document"
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
	r.blank(s.GetPrepare(), "prepare")
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
		at := append(append(slices.Clip(path), "security"), steps...)
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
