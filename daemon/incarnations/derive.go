package incarnations

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/spec/document"
)

// The words of the field sandbox of a request for a child, and of workspace.
const (
	ownSandbox    = "new"
	sharedSandbox = "shared"

	workspaceCopy   = "copy"
	workspaceBranch = "branch"
	workspaceShared = "shared"
	workspaceNone   = "none"
)

// sandboxFields is what a parent may say about a sandbox of the child's own. Each is at most
// what the parent's sandbox has.
type sandboxFields struct {
	// Workspace is copy, branch, shared or none. Empty means copy, if the parent has one.
	Workspace string       `json:"workspace"`
	Limits    *limitsField `json:"limits"`
	// Mounts are those of the parent that the child gets too.
	Mounts []mountField `json:"share_mounts"`
	// Tools are those built-in tools of the parent that the child gets too.
	Tools []string `json:"share_tools"`
	// AllowHost lets it reach the addresses of the host, as the parent may.
	AllowHost bool `json:"allow_host"`
}

// limitsField has limits in the notation of a sandbox file. What is unset is as for the parent.
type limitsField struct {
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	PIDs   uint32 `json:"pids"`
}

// mountField names a mount of the parent by its path in the container.
type mountField struct {
	Target   string `json:"target"`
	Writable bool   `json:"writable"`
}

// unset reports whether nothing was said.
func (f sandboxFields) unset() bool {
	return f.Workspace == "" && f.Limits == nil && len(f.Mounts)+len(f.Tools) == 0 && !f.AllowHost
}

// derivation makes the spec of a child's sandbox from that of its parent.
type derivation struct {
	parent *agboxv1.CreateSpec
	fields sandboxFields
	// from says who asks, and branch is the name of the branch for the child.
	from   *agboxv1.DerivedSpec
	branch string
}

// spec returns the spec. It has nothing that the parent's does not have, and what could harm
// others only as far as it is asked for. TestADerivedSandboxHasNoMoreThanItsParents names each
// field, so a new one must be decided about.
func (d derivation) spec() (*agboxv1.CreateSpec, error) {
	p := proto.CloneOf(d.parent)
	if d.fields.AllowHost && !p.GetSecurity().GetAllowHost() {
		return nil, refused("The sandbox of the parent cannot reach the addresses of the host (security.allow_host), so neither can that of its child: leave allow_host out.")
	}
	own := &agboxv1.CreateSpec{
		Image: p.GetImage(), Platform: p.GetPlatform(), PullPolicy: agboxv1.PullPolicy_PULL_POLICY_NEVER,
		Envs: p.GetEnvs(), SecretEnvs: p.GetSecretEnvs(), User: p.GetUser(), WorkingDir: p.GetWorkingDir(),
		Entrypoint: p.GetEntrypoint(), Command: p.GetCommand(),
		CpuLimit: p.GetCpuLimit(), MemoryLimit: p.GetMemoryLimit(), DiskLimit: p.GetDiskLimit(), PidsLimit: p.GetPidsLimit(),
		Ulimits: p.GetUlimits(), ShmSize: p.GetShmSize(), Tmpfs: p.GetTmpfs(), Volumes: p.GetVolumes(), Network: p.GetNetwork(),
		Revival: p.GetRevival(), IdleTtl: p.GetIdleTtl(), IdleAction: p.GetIdleAction(), CleanupTtl: p.GetCleanupTtl(),
		// A program of the parent may have put links into the paths of sources by now.
		SourcesResolved: true,
		Derived:         proto.CloneOf(d.from),
	}
	for _, step := range []func(own, p *agboxv1.CreateSpec) error{d.workspace, d.limits, d.mounts, d.tools, d.shown} {
		if err := step(own, p); err != nil {
			return nil, err
		}
	}
	own.Security = d.security(p.GetSecurity(), len(own.GetMounts()) > 0 || own.GetWorkspace() != nil)
	return own, nil
}

// refused says why a request for a sandbox cannot be met, and what can.
func refused(format string, args ...any) error {
	return fault.New(errdefs.ErrPermissionDenied, agboxv1.ErrorReason_SPAWN_NOT_ALLOWED, format, args...)
}

// workspaceOf is the path of the workspace in a sandbox, or empty.
func workspaceOf(s *agboxv1.CreateSpec) string {
	if s.GetWorkspace() != nil {
		return cmp.Or(s.GetWorkspace().GetTarget(), spec.DefaultWorkspace)
	}
	return s.GetDerived().GetWorkspace()
}

// workspace decides what the child gets of the workspace.
func (d derivation) workspace(own, p *agboxv1.CreateSpec) error {
	where, wish := workspaceOf(p), d.fields.Workspace
	switch {
	case wish == "" && where == "", wish == workspaceNone:
		return nil
	case where == "":
		return refused("The sandbox of the parent has no workspace: leave workspace out, or hand the work over in a message or in work.")
	case wish == workspaceShared && !p.GetWorkspace().GetMount():
		return refused("The workspace of the parent is a copy in its own container, which no other can share: ask for the workspace \"copy\" or \"branch\".")
	case wish == workspaceShared:
		own.Workspace = p.GetWorkspace()
		return nil
	}
	own.Derived.Workspace = where
	if own.GetWorkingDir() == "" && path.IsAbs(where) {
		own.WorkingDir = where
	}
	if wish == workspaceBranch {
		own.PostCreate = []string{branchHook(where, d.branch)}
	}
	return nil
}

// badBranch reports whether git refuses a name below agbox/ that is a name for agents.
func badBranch(name string) bool {
	return strings.Contains(name, "..") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, ".lock")
}

// branchHook is a command that puts a copied repository on the branch agbox/NAME, without
// touching its files, and without running hooks or fetching objects as the repository wants.
func branchHook(where, name string) string {
	cd := document.ShellLine([]string{where})
	if rest, home := strings.CutPrefix(where, "~"); home {
		cd = `"$HOME"` + document.ShellLine([]string{cmp.Or(rest, "/")})
	}
	return fmt.Sprintf(`set -e; cd %s; [ -e .git ] || exit 0
command -v git > /dev/null || { echo "The image has no git, which the workspace \"branch\" needs: ask for \"copy\"." >&2; exit 1; }
export GIT_ALLOW_PROTOCOL=none GIT_NO_LAZY_FETCH=1
g() { git -c safe.directory='*' -c core.hooksPath=/dev/null "$@"; }
if at=$(g rev-parse -q --verify HEAD); then g update-ref refs/heads/agbox/%[2]s "$at"; fi
g symbolic-ref HEAD refs/heads/agbox/%[2]s`, cd, name)
}

// limits takes over what is asked for, which is at most what the parent has.
func (d derivation) limits(own, _ *agboxv1.CreateSpec) error {
	asked := d.fields.Limits
	if asked == nil {
		return nil
	}
	if err := atMost("cpu", asked.CPU, &own.CpuLimit, document.ParseCPUs); err != nil {
		return err
	}
	if err := atMost("memory", asked.Memory, &own.MemoryLimit, document.ParseMemory); err != nil {
		return err
	}
	if most := cmp.Or(own.GetPidsLimit(), uint32(runtime.DefaultPIDs)); asked.PIDs > most {
		return refused("The parent may have %d processes, so its child cannot have %d: ask for at most so many.", most, asked.PIDs)
	}
	own.PidsLimit = cmp.Or(asked.PIDs, own.GetPidsLimit())
	return nil
}

// atMost replaces a limit by a lower one. An empty one is that of the install, which is applied
// to a derived sandbox besides.
func atMost(name, asked string, limit *string, parse func(string) (int64, error)) error {
	if asked == "" {
		return nil
	}
	want, err := parse(asked)
	if err != nil {
		return refused("limits.%s: %v.", name, err)
	}
	most, err := int64(0), error(nil)
	if *limit != "" {
		most, err = parse(*limit)
	}
	switch {
	case err != nil:
		return fmt.Errorf("limit %s of the parent: %w", name, err)
	case want == 0 && *limit != asked, most > 0 && want > most:
		return refused("The parent has the limit %s %s, so its child cannot have %s: ask for at most as much.", name, cmp.Or(*limit, "of the install"), asked)
	}
	*limit = asked
	return nil
}

// mounts takes over those mounts of the parent that are asked for.
func (d derivation) mounts(own, p *agboxv1.CreateSpec) error {
	copied := own.GetDerived().GetWorkspace()
	for _, asked := range d.fields.Mounts {
		target := path.Clean(asked.Target)
		there := func(m *agboxv1.MountSpec) bool { return path.Clean(m.GetTarget()) == target }
		i := slices.IndexFunc(p.GetMounts(), there)
		switch {
		case i < 0:
			return refused("The parent has no mount at %.200q: %s.", asked.Target, cmp.Or(targetsOf(p), "it has none, so leave share_mounts out"))
		case asked.Writable && !p.GetMounts()[i].GetWritable():
			return refused("The mount at %.200q is read-only for the parent: leave writable out.", asked.Target)
		case slices.ContainsFunc(own.GetMounts(), there):
			return refused("The mount at %.200q is named twice: name it once.", asked.Target)
		case copied != "" && strings.HasPrefix(target+"/", path.Clean(copied)+"/"):
			return refused("The mount at %.200q is in the workspace, which is copied with all that is there: leave the mount out, or ask for the workspace \"none\".", asked.Target)
		}
		m := proto.CloneOf(p.GetMounts()[i])
		m.Writable = asked.Writable
		own.Mounts = append(own.Mounts, m)
	}
	return nil
}

// targetsOf lists the mounts that a child may ask for.
func targetsOf(p *agboxv1.CreateSpec) string {
	var targets []string
	for _, m := range p.GetMounts() {
		targets = append(targets, m.GetTarget())
	}
	if len(targets) == 0 {
		return ""
	}
	return "it has " + strings.Join(targets, ", ")
}

// tools takes over those tools of the parent that are asked for, with what they had there.
func (d derivation) tools(own, p *agboxv1.CreateSpec) error {
	for _, name := range d.fields.Tools {
		if !slices.Contains(p.GetBuiltinTools(), name) {
			return refused("The parent does not have the tool %.80q: ask for one of its own (%s), or leave share_tools out.", name, cmp.Or(strings.Join(p.GetBuiltinTools(), ", "), "it has none"))
		}
		if slices.Contains(own.GetBuiltinTools(), name) {
			return refused("The tool %.80q is named twice: name it once.", name)
		}
		own.BuiltinTools = append(own.BuiltinTools, name)
	}
	for _, t := range p.GetToolProjections() {
		if slices.Contains(own.GetBuiltinTools(), t.GetTool()) {
			own.ToolProjections = append(own.ToolProjections, t)
		}
	}
	return nil
}

// shown refuses a folder of the host without what the parent has mounted below it: that may protect
// a part of the folder, or hide it.
func (d derivation) shown(own, p *agboxv1.CreateSpec) error {
	has := mountedAt(own)
	for above := range has {
		for at, name := range mountedAt(p) {
			if _, too := has[at]; !too && below(at, above) {
				return refused("The parent has %s in %.200q%s, which may protect or hide a part of that: ask for it too, or leave %.200q out.", name, above, unsure(at, above), above)
			}
		}
	}
	return nil
}

// mountedAt returns the paths at which a sandbox has something of the host mounted, with what to
// call it.
func mountedAt(s *agboxv1.CreateSpec) map[string]string {
	at := make(map[string]string)
	for _, t := range s.GetToolProjections() {
		if k := t.GetKind(); k != agboxv1.ProjectionKind_PROJECTION_KIND_COPY && k != agboxv1.ProjectionKind_PROJECTION_KIND_FILE {
			at[path.Clean(t.GetTarget())] = fmt.Sprintf("the tool %.80q", t.GetTool())
		}
	}
	for _, m := range s.GetMounts() {
		at[path.Clean(m.GetTarget())] = fmt.Sprintf("the mount %.200q", m.GetTarget())
	}
	if s.GetWorkspace().GetMount() {
		at[path.Clean(workspaceOf(s))] = "its workspace"
	}
	return at
}

// below reports whether a path is below another one, or may be. Of the two in a sandbox one may be in
// "~", the home of its user. Where that is, the passwd of the image says, which the daemon only reads
// to make a container, and does not keep; a running container has one that its program can write.
// So what is below another path with some home counts as below it: then the child is refused what the
// real home would perhaps allow, and never sees what its parent does not.
func below(at, above string) bool {
	inHome, rest := hostfiles.InHome(above), strings.TrimPrefix(above, "~")
	switch {
	case hostfiles.InHome(at) == inHome:
		above = strings.TrimSuffix(above, "/")
		return strings.HasPrefix(at, above+"/") && at != above+"/"
	case !inHome:
		return true // the home may be in it
	case rest == "":
		return strings.Contains(strings.TrimPrefix(at, "/"), "/") // no mount is at the home "/"
	}
	return strings.Contains(at, rest+"/")
}

// unsure adds to a refusal what below does not know.
func unsure(at, above string) string {
	if hostfiles.InHome(at) == hostfiles.InHome(above) {
		return ""
	}
	return ", or may have, because the image says where \"~\" is"
}

// security is never looser than that of the parent: what weakens the isolation is left out. A
// source of a mount that is otherwise refused stays allowed, because the parent has it mounted.
func (d derivation) security(p *agboxv1.SecuritySpec, mounts bool) *agboxv1.SecuritySpec {
	if p == nil {
		return nil
	}
	s := &agboxv1.SecuritySpec{CapDrop: p.GetCapDrop(), ReadOnlyRoot: p.ReadOnlyRoot}
	if mounts {
		s.AllowDangerousMounts = p.AllowDangerousMounts
	}
	if d.fields.AllowHost {
		s.AllowHost = p.AllowHost
	}
	return s
}
