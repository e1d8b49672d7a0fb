package incarnations

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// fill sets every field below m to something.
func fill(m protoreflect.Message, depth int) {
	value := func(f protoreflect.FieldDescriptor, fresh func() protoreflect.Value) protoreflect.Value {
		switch f.Kind() {
		case protoreflect.MessageKind:
			v := fresh()
			if depth < 4 {
				fill(v.Message(), depth+1)
			}
			return v
		case protoreflect.BoolKind:
			return protoreflect.ValueOfBool(true)
		case protoreflect.StringKind:
			return protoreflect.ValueOfString("1")
		case protoreflect.EnumKind:
			return protoreflect.ValueOfEnum(1)
		case protoreflect.Uint32Kind:
			return protoreflect.ValueOfUint32(1)
		case protoreflect.Uint64Kind:
			return protoreflect.ValueOfUint64(1)
		case protoreflect.Int64Kind:
			return protoreflect.ValueOfInt64(1)
		case protoreflect.Int32Kind:
			return protoreflect.ValueOfInt32(1)
		}
		panic("no value of the kind " + f.Kind().String())
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		switch {
		case f.IsMap():
			of := m.Mutable(f).Map()
			of.Set(protoreflect.ValueOfString("1").MapKey(), value(f.MapValue(), of.NewValue))
		case f.IsList():
			list := m.Mutable(f).List()
			list.Append(value(f, list.NewElement))
		default:
			m.Set(f, value(f, func() protoreflect.Value { return m.NewField(f) }))
		}
	}
}

// richParent is a parent that has everything.
func richParent() *agboxv1.CreateSpec {
	p := new(agboxv1.CreateSpec)
	fill(p.ProtoReflect(), 0)
	p.MemoryLimit, p.Mounts[0].Target, p.PidsLimit = "1g", "/data", 100
	p.BuiltinTools, p.ToolProjections[0].Tool = []string{"git", "uv"}, "git"
	p.ToolProjections = append(p.ToolProjections, &agboxv1.ToolProjection{Tool: "uv"})
	p.Workspace.Target, p.Derived = "/workspace", nil
	return p
}

// What becomes of each field of the parent. Whoever adds a field decides about it here.
const (
	same    = "is as for the parent"
	dropped = "is left out"
	asked   = "is left out unless it is asked for"
	others  = "is decided otherwise"
)

var ofCreateSpec = map[protoreflect.Name]string{
	"image": same, "platform": same, "envs": same, "secret_envs": same, "user": same, "entrypoint": same, "command": same,
	"working_dir": same, "cpu_limit": same, "memory_limit": same, "disk_limit": same, "pids_limit": same, "ulimits": same, "shm_size": same,
	"tmpfs": same, "volumes": same, "network": same, "revival": same, "idle_ttl": same, "idle_action": same, "cleanup_ttl": same,
	"copies": dropped, "services": dropped, "labels": dropped, "ports": dropped, "gpus": dropped, "name": dropped, "hostname": dropped, "match_user": dropped, "prepare": dropped, "post_create": dropped,
	"agent": dropped, "build": dropped, "published": dropped,
	"mounts": asked, "builtin_tools": asked, "tool_projections": asked,
	// The image of the parent's container is used, so nothing is pulled. Paths are followed through
	// no links. The workspace is copied from the sandbox. Security has a table of its own.
	"pull_policy": others, "sources_resolved": others, "workspace": others, "derived": others, "security": others,
}

var ofSecuritySpec = map[protoreflect.Name]string{
	"cap_drop": same, "read_only_root": same,
	"cap_add": dropped, "allow_new_privileges": dropped, "seccomp_unconfined": dropped, "devices": dropped, "privileged": dropped, "writable_config": dropped,
	"allow_host": asked,
	// It is for sources of mounts only, so it comes with them.
	"allow_dangerous_mounts": asked,
}

// compare checks a table against what was derived.
func compare(t *testing.T, table map[protoreflect.Name]string, parent, own protoreflect.Message, all bool) {
	t.Helper()
	for i := range parent.Descriptor().Fields().Len() {
		f := parent.Descriptor().Fields().Get(i)
		equal := own.Has(f) && parent.Has(f) && parent.Get(f).Equal(own.Get(f))
		switch rule := table[f.Name()]; {
		case rule == "":
			t.Errorf("%s: nobody has decided whether a sandbox that a program asks for has it; see derivation.spec", f.FullName())
		case rule == same && !equal, rule == dropped && own.Has(f), rule == asked && own.Has(f) != all:
			t.Errorf("%s %s; it is %v, for the parent %v", f.Name(), rule, own.Get(f), parent.Get(f))
		}
	}
}

func TestADerivedSandboxHasNoMoreThanItsParents(t *testing.T) {
	for _, all := range []bool{false, true} {
		parent := richParent()
		d := derivation{parent: parent, from: &agboxv1.DerivedSpec{Parent: "x", Tree: "x"}, branch: "b"}
		if all {
			d.fields = sandboxFields{
				Workspace: workspaceNone, Mounts: []mountField{{Target: "/data/", Writable: true}}, Tools: []string{"git", "uv"}, AllowHost: true,
			}
		}
		before := proto.CloneOf(parent)
		own, err := d.spec()
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(parent, before) {
			t.Error("the spec of the parent was changed")
		}
		compare(t, ofCreateSpec, parent.ProtoReflect(), own.ProtoReflect(), all)
		compare(t, ofSecuritySpec, parent.GetSecurity().ProtoReflect(), own.GetSecurity().ProtoReflect(), all)
		wantCopy := map[bool]string{false: "/workspace", true: ""}[all]
		if own.GetPullPolicy() != agboxv1.PullPolicy_PULL_POLICY_NEVER || !own.GetSourcesResolved() || own.GetWorkspace() != nil || own.GetDerived().GetWorkspace() != wantCopy {
			t.Errorf("the rest is %v", own)
		}
	}
	if got, err := (derivation{parent: new(agboxv1.CreateSpec), from: new(agboxv1.DerivedSpec)}).spec(); err != nil || got.GetSecurity() != nil || got.GetDerived().GetWorkspace() != "" {
		t.Errorf("of a parent with nothing: %v, %v", got, err)
	}
}

func TestWhatAParentMayAskForASandbox(t *testing.T) {
	const g = "1g"
	for _, row := range []struct {
		name   string
		change func(p *agboxv1.CreateSpec, f *sandboxFields)
		want   string
	}{
		{"less of everything", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.CpuLimit, f.Limits = "2", &limitsField{CPU: "0.5", Memory: "512m", PIDs: 99}
		}, ""},
		{"as much", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.CpuLimit, f.Limits = "2", &limitsField{CPU: "2", Memory: g, PIDs: 100}
		}, ""},
		{"a limit where the parent has none", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.CpuLimit, p.MemoryLimit, f.Limits = "", "", &limitsField{CPU: "64", Memory: "900g"}
		}, ""},
		{"more processors", func(p *agboxv1.CreateSpec, f *sandboxFields) { p.CpuLimit, f.Limits = "2", &limitsField{CPU: "2.5"} }, "cannot have 2.5"},
		{"more memory", func(_ *agboxv1.CreateSpec, f *sandboxFields) { f.Limits = &limitsField{Memory: "1025m"} }, "cannot have 1025m"},
		{"all memory", func(_ *agboxv1.CreateSpec, f *sandboxFields) { f.Limits = &limitsField{Memory: "unlimited"} }, "cannot have unlimited"},
		{"all memory, where the install bounds it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.MemoryLimit, f.Limits = "", &limitsField{Memory: "unlimited"}
		}, "cannot have unlimited"},
		{"all memory, as the parent", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.MemoryLimit, f.Limits = "unlimited", &limitsField{Memory: "unlimited"}
		}, ""},
		{"no memory", func(_ *agboxv1.CreateSpec, f *sandboxFields) { f.Limits = &limitsField{Memory: "0"} }, "cannot have 0"},
		{"no size", func(_ *agboxv1.CreateSpec, f *sandboxFields) { f.Limits = &limitsField{Memory: "much"} }, "is not a size"},
		{"more processes", func(_ *agboxv1.CreateSpec, f *sandboxFields) { f.Limits = &limitsField{PIDs: 101} }, "101"},
		{"more processes than without a limit", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.PidsLimit, f.Limits = 0, &limitsField{PIDs: 4097}
		}, "4097"},
		{"a mount that the parent does not have", func(_ *agboxv1.CreateSpec, f *sandboxFields) { f.Mounts = []mountField{{Target: "/etc"}} }, "it has /data"},
		{"a mount twice", func(_ *agboxv1.CreateSpec, f *sandboxFields) {
			f.Mounts = []mountField{{Target: "/data"}, {Target: "/data/."}}
		}, "named twice"},
		{"to write where the parent reads", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts[0].Writable, f.Mounts = false, []mountField{{Target: "/data", Writable: true}}
		}, "read-only for the parent"},
		{"a mount in the copied workspace", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts[0].Target, f.Mounts = "/workspace/data", []mountField{{Target: "/workspace/data"}}
		}, "in the workspace"},
		{"a tool that the parent does not have", func(_ *agboxv1.CreateSpec, f *sandboxFields) { f.Tools = []string{"claude"} }, "git, uv"},
		{"the host, which the parent does not reach", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Security.AllowHost, f.AllowHost = nil, true
		}, "security.allow_host"},
		{"to share a mounted workspace", func(_ *agboxv1.CreateSpec, f *sandboxFields) { f.Workspace = workspaceShared }, ""},
		{"to share a copied workspace", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Workspace.Mount, f.Workspace = nil, workspaceShared
		}, "ask for the workspace \"copy\""},
		{"a workspace without the mount in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts[0].Target, f.Workspace = "/workspace/ci", workspaceShared
		}, "the mount \"/workspace/ci\" in \"/workspace\""},
		{"a workspace with the mount in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts[0].Target, f.Workspace, f.Mounts = "/workspace/ci", workspaceShared, []mountField{{Target: "/workspace/ci"}}
		}, ""},
		{"a mount without the mount in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts = append(p.Mounts, &agboxv1.MountSpec{Target: "/data/private"})
			f.Mounts = []mountField{{Target: "/data"}}
		}, "the mount \"/data/private\""},
		{"a mount without the workspace in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Workspace.Target, f.Mounts, f.Workspace = "/data/app", []mountField{{Target: "/data"}}, workspaceNone
		}, "its workspace"},
		{"a mount beside the other", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts = append(p.Mounts, &agboxv1.MountSpec{Target: "/data2"})
			f.Mounts = []mountField{{Target: "/data"}}
		}, ""},
		{"the whole system without what is mounted in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts[0].Target, f.Mounts, f.Workspace = "/", []mountField{{Target: "/"}}, workspaceNone
		}, "its workspace"},
		{"a home without the tool in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts[0].Target, p.ToolProjections[0].Target = "/home/me", "~/.gitconfig"
			f.Mounts = []mountField{{Target: "/home/me"}}
		}, "the tool \"git\""},
		{"a mount in which a home of no usual name may be, without the tool in that", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.ToolProjections[0].Target, f.Mounts = "~/.gitconfig", []mountField{{Target: "/data"}}
		}, "the tool \"git\" in \"/data\", or may have"},
		{"such a mount with the tool", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.ToolProjections[0].Target, f.Mounts, f.Tools = "~/.gitconfig", []mountField{{Target: "/data"}}, []string{"git"}
		}, ""},
		{"such a mount without the copies of a tool, which hide nothing", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			for _, kind := range []agboxv1.ProjectionKind{agboxv1.ProjectionKind_PROJECTION_KIND_COPY, agboxv1.ProjectionKind_PROJECTION_KIND_FILE} {
				p.ToolProjections = append(p.ToolProjections, &agboxv1.ToolProjection{Tool: "git", Target: "~/.claude.json", Kind: kind})
			}
			f.Mounts = []mountField{{Target: "/data"}}
		}, ""},
		{"a shared workspace in which the home may be", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts[0].Target, f.Workspace = "~/private", workspaceShared
		}, "the mount \"~/private\" in \"/workspace\", or may have"},
		{"the home without the mount in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts = append(p.Mounts, &agboxv1.MountSpec{Target: "~"})
			p.Mounts[0].Target, f.Mounts = "/srv/private", []mountField{{Target: "~"}}
		}, "the mount \"/srv/private\" in \"~\", or may have"},
		{"a part of a home of no usual name without the mount in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts = append(p.Mounts, &agboxv1.MountSpec{Target: "~/x"})
			p.Mounts[0].Target, f.Mounts = "/srv/x/private", []mountField{{Target: "~/x"}}
		}, "the mount \"/srv/x/private\" in \"~/x\", or may have"},
		{"a part of the home in which nothing else can be", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts = append(p.Mounts, &agboxv1.MountSpec{Target: "~/x"}, &agboxv1.MountSpec{Target: "/srv/xy/private"}, &agboxv1.MountSpec{Target: "~/y"})
			f.Mounts = []mountField{{Target: "~/x"}}
		}, ""},
		{"a part of the home without the mount in it", func(p *agboxv1.CreateSpec, f *sandboxFields) {
			p.Mounts[0].Target = "~/x"
			p.Mounts = append(p.Mounts, &agboxv1.MountSpec{Target: "/root/x/private"})
			f.Mounts = []mountField{{Target: "~/x"}}
		}, "the mount \"/root/x/private\""},
		{"to copy what is not there", func(p *agboxv1.CreateSpec, f *sandboxFields) { p.Workspace, f.Workspace = nil, workspaceCopy }, "no workspace"},
	} {
		d := derivation{parent: richParent(), from: new(agboxv1.DerivedSpec)}
		row.change(d.parent, &d.fields)
		own, err := d.spec()
		switch {
		case row.want == "" && err != nil:
			t.Errorf("%s: %v", row.name, err)
		case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
			t.Errorf("%s: %v; want %q", row.name, err, row.want)
		case d.fields.Workspace == workspaceShared && err == nil && !proto.Equal(own.GetWorkspace(), d.parent.GetWorkspace()):
			t.Errorf("%s: it has %v", row.name, own.GetWorkspace())
		}
	}
}

// TestAGrandchildHasTheWorkspaceOfACopy: what was copied into a sandbox can be copied on.
func TestAGrandchildHasTheWorkspaceOfACopy(t *testing.T) {
	child, err := derivation{parent: richParent(), from: &agboxv1.DerivedSpec{Parent: "x"}}.spec()
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := derivation{parent: child, from: &agboxv1.DerivedSpec{Parent: "y"}, fields: sandboxFields{Workspace: workspaceBranch}, branch: "part-1"}.spec()
	if err != nil || grandchild.GetDerived().GetWorkspace() != "/workspace" || grandchild.GetDerived().GetParent() != "y" {
		t.Errorf("%v, %v", grandchild.GetDerived(), err)
	}
	if hook := grandchild.GetPostCreate(); len(hook) != 1 || !strings.Contains(hook[0], "refs/heads/agbox/part-1") {
		t.Errorf("the hook is %q", hook)
	}
}

// TestTheBranchOfAChildChangesNoFiles runs the hook on a repository with uncommitted work and a
// hook of its own, on one without commits, and on a folder that is none.
func TestTheBranchOfAChildChangesNoFiles(t *testing.T) {
	git := func(dir string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir, "-c", "user.name=a", "-c", "user.email=a@b"}, args...)...)
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run := func(dir string) {
		t.Helper()
		for range 2 { // a hook that a stop ended runs again
			if out, err := exec.CommandContext(t.Context(), "sh", "-c", branchHook(dir, "part-1")).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "it's a workspace")
	git(t.TempDir(), "init", "-q", dir)
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("a", "1", 0o600)
	run(dir)
	if got := git(dir, "symbolic-ref", "HEAD"); got != "refs/heads/agbox/part-1" {
		t.Errorf("without commits it is on %s", got)
	}
	git(dir, "add", "a")
	git(dir, "commit", "-q", "-m", "one")
	git(dir, "symbolic-ref", "HEAD", "refs/heads/main")
	git(dir, "update-ref", "refs/heads/main", "refs/heads/agbox/part-1")
	git(dir, "commit", "-q", "--allow-empty", "-m", "two")
	write("a", "2", 0o600)
	write(".git/hooks/reference-transaction", "#!/bin/sh\ntouch '"+t.TempDir()+"/ran'; exit 1\n", 0o700)
	run(dir)
	if head, main := git(dir, "rev-parse", "HEAD"), git(dir, "rev-parse", "main"); head != main || git(dir, "symbolic-ref", "HEAD") != "refs/heads/agbox/part-1" {
		t.Errorf("it is at %s, and was at %s", head, main)
	}
	if got := git(dir, "status", "--porcelain"); got != "M a" {
		t.Errorf("the work is %q", got)
	}
	run(t.TempDir())
}

// TestTheBranchOfAChildRunsNoProgramOfTheRepository: a partial clone lacks the commit that HEAD
// names, and says how to get it.
func TestTheBranchOfAChildRunsNoProgramOfTheRepository(t *testing.T) {
	dir, ran := t.TempDir(), filepath.Join(t.TempDir(), "ran")
	evil := filepath.Join(t.TempDir(), "evil")
	if err := os.WriteFile(evil, []byte("#!/bin/sh\ntouch '"+ran+"'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"init", "-q"},
		{"config", "core.repositoryFormatVersion", "1"},
		{"config", "extensions.partialClone", "origin"},
		{"config", "remote.origin.promisor", "true"},
		{"config", "remote.origin.url", "ssh://x/y"},
		{"config", "core.sshCommand", evil},
	} {
		if out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ".git", "HEAD"), []byte(strings.Repeat("1", 40)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", branchHook(dir, "part-1")).CombinedOutput()
	if _, statErr := os.Stat(ran); err == nil || !os.IsNotExist(statErr) {
		t.Errorf("the hook has run the program (%v), or not missed the commit: %v\n%s", statErr, err, out)
	}
}
