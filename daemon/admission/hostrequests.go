package admission

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/secrets"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/projections"
)

// HostRequests lists what the files of a request ask of the host, and tells whether the
// operator trusts their folder.
func (c *Controller) HostRequests(ctx context.Context, req *agboxv1.CreateSandboxRequest, result *spec.Result) *agboxv1.HostRequests {
	out := HostRequests(req, result, c.pulled(ctx))
	out.TrustedByPolicy = req.GetConfigDir() != "" && c.o.Host.Bound().Trusts(req.GetConfigDir())
	return out
}

// HostRequests lists what the files of a request demand of the host. It does not list
// create_spec, which comes from the caller itself. pulled reports whether the engine would ask a
// registry for the image of a container; nil means that it asks none.
func HostRequests(req *agboxv1.CreateSandboxRequest, result *spec.Result, pulled func(pullable) (bool, error)) *agboxv1.HostRequests {
	list := newRequestList(req, result)
	list.pulled = pulled
	return list.requests()
}

// requests returns the list.
func (l *requestList) requests() *agboxv1.HostRequests {
	l.out = new(agboxv1.HostRequests)
	resolved := l.result.Draft()
	if resolved == nil {
		return l.out
	}
	l.folders(resolved)
	l.builds(resolved)
	l.image(resolved, "", nil)
	l.ports(resolved.GetPorts(), "", nil)
	l.tools(resolved)
	l.container(resolved, "", nil)
	for i, s := range resolved.GetServices() {
		l.image(s, "service "+s.GetName()+": ", []any{"services", i})
		l.ports(s.GetPorts(), " of service "+s.GetName(), []any{"services", i})
		l.container(s, "service "+s.GetName()+": ", []any{"services", i})
	}
	l.logins(l.req, resolved)
	return l.out
}

// stillAgreed refuses files that request something else of the host than what the caller
// agreed to. If the engine does not say which images it has, that may be all that is new.
func (l *requestList) stillAgreed() error {
	if l.req.GetAgreed() == nil {
		return nil
	}
	before, now := l.req.GetAgreed().GetRequests(), l.requests().GetRequests()
	before = slices.DeleteFunc(slices.Clone(before), func(r *agboxv1.HostRequest) bool {
		// The engine has the image by now.
		return r.GetKind() == pullKind && !slices.ContainsFunc(now, func(n *agboxv1.HostRequest) bool { return proto.Equal(n, r) })
	})
	if l.unanswered != nil && !slices.EqualFunc(before, now, func(a, b *agboxv1.HostRequest) bool { return proto.Equal(a, b) }) {
		return l.unanswered
	}
	for i := range max(len(before), len(now)) {
		switch {
		case i >= len(now):
			return requestsChanged(before[i], "no longer requests")
		case i >= len(before) || !proto.Equal(before[i], now[i]):
			return requestsChanged(now[i], "now requests")
		}
	}
	return nil
}

func requestsChanged(r *agboxv1.HostRequest, how string) error {
	return fault.New(errdefs.ErrFailedPrecondition, agboxv1.ErrorReason_HOST_REQUESTS_CHANGED,
		"What the sandbox spec requests of this machine changed while you were asked. It %s %s %.500s. Run the command again to decide anew.",
		how, r.GetKind(), r.GetText())
}

// resolveSources replaces the sources of a spec by the paths to which they led when they
// were checked, if files that the caller does not vouch for name some of them. Whoever can
// write to the folder could let one lead elsewhere before it is used.
func (l *requestList) resolveSources(s *agboxv1.CreateSpec) {
	sources := hostfiles.Sources(s)
	if !l.req.GetUntrustedFiles() || len(sources)+len(builds(s)) == 0 {
		return
	}
	for _, f := range sources {
		*f.Source = l.resolved(*f.Source)
	}
	s.SourcesResolved = true
}

// folders adds mounts, copies, the work of the agent and the workspace. Copying the folder that the file came
// with needs no request.
func (l *requestList) folders(s *agboxv1.CreateSpec) {
	for i, m := range s.GetMounts() {
		if l.implied(i) {
			continue
		}
		access := "read-only"
		if m.GetWritable() {
			access = "writable"
		}
		source, inside := l.source(m.GetSource(), "mounts", i, "source")
		l.add([]any{"mounts", i, "source"}, "mount", m.GetWritable() || !inside, "%s at %s, %s", source, m.GetTarget(), access)
	}
	for i, c := range s.GetCopies() {
		if source, inside := l.source(c.GetSource(), "copies", i, "source"); !inside {
			l.add([]any{"copies", i, "source"}, "copy", true, "%s to %s", source, c.GetTarget())
		}
	}
	for i, service := range s.GetServices() {
		for j, c := range service.GetCopies() {
			if source, inside := l.source(c.GetSource(), "services", i, "copies", j, "source"); !inside {
				l.add([]any{"services", i, "copies", j, "source"}, "copy", true, "service %s: %s to %s", service.GetName(), source, c.GetTarget())
			}
		}
	}
	if work := s.GetAgent().GetWork(); work != "" {
		if source, inside := l.source(work, "agent", "work"); !inside {
			l.add([]any{"agent", "work"}, "copy", true, "%s to the agent, as its work", source)
		}
	}
	if stack := s.GetAgent().GetStack().GetName(); stack != "" {
		l.add([]any{"agent", "stack", "name"}, "stack", false, "the agent makes a stack %s: what you send on a stream to stacks of this name reaches its agents too", stack)
	}
	w := s.GetWorkspace()
	if w == nil {
		return
	}
	target := cmp.Or(w.GetTarget(), spec.DefaultWorkspace)
	source, inside := l.source(w.GetSource(), "workspace", "source")
	switch {
	case w.GetMount():
		l.add([]any{"workspace", "mount"}, "mount", true, "%s at %s, writable", source, target)
		l.worktreeRequest(s)
	case !inside:
		l.add([]any{"workspace", "source"}, "copy", true, "%s to %s", source, target)
	}
}

func (l *requestList) ports(ports []*agboxv1.PortMapping, whose string, path []any) {
	for i, p := range ports {
		at := slices.Concat(path, []any{"ports", i, "container_port"})
		host := cmp.Or(p.GetHostIp(), localhost)
		published := "a free port of " + host
		if p.GetHostPort() != 0 {
			published = fmt.Sprintf("port %d of %s", p.GetHostPort(), host)
		}
		protocol := strings.ToLower(strings.TrimPrefix(p.GetProtocol().String(), "PORT_PROTOCOL_"))
		l.add(at, "port", false, "%s leads to port %d/%s%s", published, p.GetContainerPort(), protocol, whose)
	}
}

// tools adds built-in tools that a file names. They do not get credentials.
func (l *requestList) tools(s *agboxv1.CreateSpec) {
	for i, name := range s.GetBuiltinTools() {
		var what []string
		for _, p := range s.GetToolProjections() {
			if p.GetTool() == name && p.GetSource() != "" {
				what = append(what, p.GetSource())
			}
		}
		if len(what) > 0 {
			l.add([]any{"builtin_tools", i}, "tool", false, "%s, with %s", name, strings.Join(what, ", "))
		}
	}
}

// container adds settings of a file that weaken the isolation. If the files are not
// trusted, spec.Resolve refuses some of these; otherwise they are listed.
func (l *requestList) container(c interface {
	GetSecurity() *agboxv1.SecuritySpec
	GetGpus() string
	GetPidsLimit() uint32
	GetMemoryLimit() string
	GetUlimits() []*agboxv1.UlimitSpec
}, who string, path []any) {
	s := c.GetSecurity()
	loosen := func(asked bool, text string, steps ...any) {
		if asked {
			l.add(slices.Concat(path, []any{"security"}, steps), "security", true, "%s%s", who, text)
		}
	}
	loosen(s.GetPrivileged(), "privileged: it is root on this machine", "privileged")
	loosen(s.GetAllowNewPrivileges(), "programs may gain new privileges", "allow_new_privileges")
	loosen(s.GetSeccompUnconfined(), "system calls are not filtered", "seccomp_unconfined")
	loosen(s.GetAllowDangerousMounts(), "dangerous mounts are allowed", "allow_dangerous_mounts")
	loosen(s.GetWritableConfig(), "it may change what this machine executes in writable mounts", "writable_config")
	loosen(s.GetAllowHost(), "it may reach the addresses of this machine, and metadata addresses", "allow_host")
	for i, name := range s.GetCapAdd() {
		loosen(true, "capability "+name, "cap_add", i)
	}
	for i, name := range s.GetDevices() {
		loosen(true, "device "+name, "devices", i)
	}
	if c.GetGpus() != "" {
		l.add(slices.Concat(path, []any{"gpus"}), "device", true, "%sGPUs: %s", who, c.GetGpus())
	}
	for i, u := range c.GetUlimits() {
		if why := ofTheHost[u.GetName()]; why != "" {
			l.add(slices.Concat(path, []any{"ulimits", i}), "limit", true, "%sulimit %s %s: its programs %s", who, u.GetName(), limits(u), why)
		}
	}
	if c.GetMemoryLimit() == "unlimited" {
		l.add(slices.Concat(path, []any{"memory_limit"}), "limit", false, "%sas much memory as this machine has", who)
	}
	if limit := int64(c.GetPidsLimit()); limit > runtime.DefaultPIDs {
		l.add(slices.Concat(path, []any{"pids_limit"}), "limit", false, "%sup to %d processes and threads, instead of %d", who, limit, runtime.DefaultPIDs)
	}
}

// ofTheHost are the ulimits that give power over other programs of the host, and which.
var ofTheHost = map[string]string{
	"rtprio":  "may run before all others of this machine, which then stand still",
	"rttime":  "may run before others of this machine for longer",
	"nice":    "may get more of the processors than others of this machine",
	"memlock": "may keep memory of this machine from being swapped",
}

// limits are the numbers of a ulimit.
func limits(u *agboxv1.UlimitSpec) string {
	if u.Hard == nil || u.GetHard() == u.GetSoft() {
		return fmt.Sprint(u.GetSoft())
	}
	return fmt.Sprintf("%d:%d", u.GetSoft(), u.GetHard())
}

// logins adds credentials that the caller itself passes on, as files or as variables, while
// a file decides which programs run with them.
func (l *requestList) logins(req *agboxv1.CreateSandboxRequest, s *agboxv1.CreateSpec) {
	if len(req.GetConfigYaml()) == 0 && len(req.GetBaseFiles()) == 0 {
		return
	}
	login := func(format string, args ...any) {
		l.out.Requests = append(l.out.Requests, &agboxv1.HostRequest{
			Kind: "login", Dangerous: true, Text: fmt.Sprintf(format, args...) + ", which you hand over yourself, to what this file describes",
		})
	}
	for _, p := range s.GetToolProjections() {
		if projections.Credential(p.GetTool(), p.GetTarget()) {
			login("%s of %s", p.GetSource(), p.GetTool())
		}
	}
	given := req.GetCreateSpec()
	for _, name := range slices.Sorted(maps.Keys(given.GetEnvs())) {
		if given.GetEnvs()[name] != "" && secrets.Is(name, given.GetSecretEnvs()) {
			login("the variable %s", name)
		}
	}
}
