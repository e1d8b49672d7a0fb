package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/daemon/machine"
	"github.com/agbox/agbox/internal/fault"
	"github.com/agbox/agbox/internal/paths"
	"github.com/agbox/agbox/internal/process"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/runtime"
	"github.com/agbox/agbox/spec"
)

// workspaceTarget returns the path of the workspace, or "" if there is none.
func workspaceTarget(s *agboxv1.CreateSpec) string {
	if s.GetWorkspace() == nil {
		return ""
	}
	return cmp.Or(s.GetWorkspace().GetTarget(), spec.DefaultWorkspace)
}

// hostMount is a path of the host that the primary mounts.
type hostMount struct {
	runtime.Mount
	// covered is the target of the mount of which this one covers a part; mostly empty.
	covered string
}

// hostOf returns the rules for sources of a sandbox.
func (l *Loop) hostOf(sb ledger.Sandbox) hostfiles.Checker {
	host := l.host
	host.Resolved = sb.Spec.GetSourcesResolved()
	host.Thorough = sb.Spec.GetDerived() != nil // a program chose the time, and could prepare the folder
	return host
}

// hostMounts returns the paths of the host that the primary mounts. It checks them again,
// because they may have changed since the sandbox was requested.
func (l *Loop) hostMounts(sb ledger.Sandbox) ([]runtime.Mount, error) {
	force := sb.Spec.GetSecurity().GetAllowDangerousMounts()
	host := l.hostOf(sb)
	b := &binder{host: host, covers: !sb.Spec.GetSecurity().GetWritableConfig()}
	for _, m := range sb.Spec.GetMounts() {
		use := hostfiles.MountUse(m.GetWritable())
		held, err := host.Hold(m.GetSource(), use, force)
		if err := b.bind(held, err, m.GetTarget(), use); err != nil {
			return nil, err
		}
	}
	if w := sb.Spec.GetWorkspace(); w.GetMount() {
		held, err := host.Workspace(w, force)
		if err := b.bind(held, err, workspaceTarget(sb.Spec), hostfiles.Writable); err != nil {
			return nil, err
		}
	}
	for _, p := range sb.Spec.GetToolProjections() {
		switch p.GetKind() {
		case agboxv1.ProjectionKind_PROJECTION_KIND_MOUNT:
			held, err := l.host.HoldForTool(p.GetSource(), hostfiles.ReadOnly)
			if err := b.bind(held, err, p.GetTarget(), hostfiles.ReadOnly); err != nil {
				return nil, err
			}
		case agboxv1.ProjectionKind_PROJECTION_KIND_CACHE:
			if err := makeCache(p.GetSource()); err != nil {
				return nil, err
			}
			b.add(runtime.Mount{Source: p.GetSource(), Target: p.GetTarget()}, "")
		}
	}
	return b.mounts(sb.Spec), nil
}

// binder collects mounts.
type binder struct {
	host hostfiles.Checker
	// covers is true if writable mounts are covered.
	covers bool
	all    []hostMount
}

func (b *binder) add(m runtime.Mount, covered string) {
	b.all = append(b.all, hostMount{m, covered})
}

// bind adds a source that Hold returned, with its covers, and closes it.
func (b *binder) bind(held *hostfiles.Source, err error, target string, use hostfiles.Use) error {
	if err != nil {
		return err
	}
	defer held.Close()
	b.add(runtime.Mount{Source: held.Path, Target: target, ReadOnly: use != hostfiles.Writable}, "")
	if use != hostfiles.Writable || !b.covers {
		return nil
	}
	parts, err := b.host.Covers(held)
	for _, one := range parts {
		b.add(runtime.Mount{Source: filepath.Join(held.Path, one.Name), Target: path.Join(target, one.Name), ReadOnly: one.ReadOnly}, path.Clean(target))
	}
	return err
}

// mounts returns all mounts except the covers over which the spec itself mounts something:
// these would be in its place, or in something that is not the covered folder.
func (b *binder) mounts(s *agboxv1.CreateSpec) []runtime.Mount {
	var targets []string
	for _, m := range b.all {
		if m.covered == "" {
			targets = append(targets, path.Clean(m.Target))
		}
	}
	for _, v := range s.GetVolumes() {
		targets = append(targets, path.Clean(v.GetTarget()))
	}
	for _, t := range s.GetTmpfs() {
		targets = append(targets, path.Clean(t.GetTarget()))
	}
	var all []runtime.Mount
	for _, m := range b.all {
		shadowed := func(target string) bool {
			return strings.HasPrefix(target, m.covered+"/") && (m.Target == target || strings.HasPrefix(m.Target, target+"/"))
		}
		if m.covered == "" || !slices.ContainsFunc(targets, shadowed) {
			all = append(all, m.Mount)
		}
	}
	return all
}

// makeCache makes a folder that sandboxes share. Every user in them may write to it.
// Other users of the host have no access, because agbox's own folder above it is closed
// to them.
func makeCache(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the cache of a tool: %w", err)
	}
	if st, err := os.Stat(dir); err == nil && st.Mode().Perm() != 0o777 {
		if err := os.Chmod(dir, 0o777|os.ModeSticky); err != nil && st.Mode().Perm()&0o007 != 0o007 {
			return fmt.Errorf("open the cache of a tool to its users: %w", err)
		}
	}
	return nil
}

// HostEnv tells every primary the ids of the user who runs agbox on the host. An
// entrypoint that changes to another user can take these ids. Then files in mounts have
// the same owner inside and outside.
func HostEnv() map[string]string {
	return map[string]string{"HOST_UID": strconv.Itoa(os.Getuid()), "HOST_GID": strconv.Itoa(os.Getgid())}
}

// primaryEnv returns the environment of the primary: HostEnv, overridden by that of its
// tools, overridden by its own.
func primaryEnv(s *agboxv1.CreateSpec) map[string]string {
	env := HostEnv()
	for _, p := range s.GetToolProjections() {
		maps.Copy(env, p.GetEnvs())
	}
	maps.Copy(env, s.GetEnvs())
	return env
}

// supervisorEnv is the environment of the container. What changes a Go program is taken
// from the supervisor, which is one, and given to the commands by commandEnv.
func supervisorEnv(s *agboxv1.CreateSpec) []string {
	rest, _ := process.SplitGoVariables(envList(primaryEnv(s)))
	return append(rest, process.SupervisorGoVariables()...)
}

// commandEnv are the variables that supervisorEnv takes away, as the image sets them,
// overridden by the spec.
func commandEnv(s *agboxv1.CreateSpec, image runtime.Image) []string {
	_, ofImage := process.SplitGoVariables(image.Env)
	_, own := process.SplitGoVariables(envList(primaryEnv(s)))
	return append(ofImage, own...)
}

// commandWaits reports whether the sandbox's own command does not start before files are copied in, or
// before the commands of prepare have ended.
func commandWaits(sb ledger.Sandbox) bool {
	return len(hostfiles.Copies(sb.Spec)) > 0 || len(sb.Spec.GetPrepare()) > 0 && sb.Pool == ""
}

// copyIn copies the host files of the spec into the primary.
func (l *Loop) copyIn(ctx context.Context, sb ledger.Sandbox, o *machine.Observation) error {
	l.announce(ctx, sb, "copy", "")
	said, field := l.now(), ""
	var files, bytes int64
	copies, err := l.copiesOf(sb)
	if err != nil {
		return err
	}
	var ignored hostfiles.Ignored
	for i := range copies {
		copies[i].Ignored = &ignored // only the workspace has any
	}
	err = l.files.CopyIn(ctx, sb.ID, l.hostOf(sb), copies, func(one hostfiles.Copy, moreFiles, moreBytes int64) {
		if one.Field != field {
			field, files, bytes = one.Field, 0, 0
		}
		files, bytes = files+moreFiles, bytes+moreBytes
		if now := l.now(); now.Sub(said) >= copyProgressEvery {
			said = now
			l.announce(ctx, sb, "copy", fmt.Sprintf("%s: %d files, %d MB", field, files, bytes/1e6))
		}
	})
	if err == nil && ctx.Err() == nil {
		o.Copied = true
		if ignored.Files > 0 {
			o.Ignored = &agboxv1.SandboxPhaseDetails{IgnoredFiles: ignored.Files, IgnoredNames: ignored.Names()}
		}
	}
	return err
}

// copyProgressEvery bounds the number of progress events of a long copy.
const copyProgressEvery = 2 * time.Second

// afterCopy lets the container's own command start once its files are copied.
func (l *Loop) afterCopy(ctx context.Context, sb ledger.Sandbox, ev *agboxv1.SandboxEvent) error {
	if ev.GetEventType() != agboxv1.EventType_SANDBOX_FILES_COPIED {
		return nil
	}
	l.enqueueSpawners(sb)
	err := l.execs.Release(ctx, sb.ID)
	if err != nil {
		l.links.Drop(sb.ID) // the next link repeats the release
	}
	return err
}

// home returns what "~" stands for in the targets that must be known before the
// primary is made: the home of the default user of execs, which the supervisor also
// sets as HOME. It is empty if no such target begins with "~". A user without an entry
// in the image's /etc/passwd has the home "/". The published daemon takes /home/agbox for
// it but documents the home of the user, which is what agbox uses.
func (l *Loop) home(ctx context.Context, sb ledger.Sandbox, image runtime.Image, n *sandboxNetwork) (string, error) {
	if !homeTargets(sb.Spec) {
		return "", nil
	}
	network, err := l.network(ctx, sb, n)
	if err != nil {
		return "", err
	}
	passwd, group, err := l.userFiles(ctx, sb, image, network)
	if err != nil {
		return "", err
	}
	who, err := hostfiles.LookUpUser(defaultUser(sb.Spec, image), passwd, group)
	if err != nil {
		return "", err
	}
	return who.Home, nil
}

// homeTargets reports whether the target of a mount or of the workspace is below "~".
// The workspace counts also if it is copied, because it is the working directory.
func homeTargets(s *agboxv1.CreateSpec) bool {
	return hostfiles.InHome(s.GetWorkspace().GetTarget()) ||
		slices.ContainsFunc(s.GetMounts(), func(m *agboxv1.MountSpec) bool { return hostfiles.InHome(m.GetTarget()) })
}

// userFiles reads /etc/passwd and /etc/group of an image. The engine reads files only
// from containers, so it makes one that is never started. One that an earlier daemon
// left behind is found by its name.
func (l *Loop) userFiles(ctx context.Context, sb ledger.Sandbox, image runtime.Image, network runtime.Network) (passwd, group []byte, err error) {
	id, err := ask(ctx, l, verbTimeout, l.engine.EnsureContainer, runtime.ContainerSpec{
		Identity:   l.identity(sb, runtime.RoleImageReader),
		Name:       runtime.ImageReaderName(sb.ID),
		Hostname:   hostname(sb),
		ImageID:    image.ID,
		Entrypoint: []string{paths.InContainerInit}, // the engine wants one
		NetworkID:  network.ID,
	})
	if err != nil {
		return nil, nil, err
	}
	err = l.verb(ctx, lookTimeout, func(ctx context.Context) (err error) {
		if passwd, err = l.engine.ReadFile(ctx, id, "/etc/passwd", hostfiles.MaxUserFile); err != nil {
			return err
		}
		group, err = l.engine.ReadFile(ctx, id, "/etc/group", hostfiles.MaxUserFile)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return passwd, group, l.verb(ctx, verbTimeout, func(ctx context.Context) error { return l.engine.RemoveContainer(ctx, id) })
}

// expanded returns the mounts with "~" in their targets replaced by home.
func expanded(mounts []runtime.Mount, home string) ([]runtime.Mount, error) {
	for i, m := range mounts {
		if !hostfiles.InHome(m.Target) {
			continue
		}
		mounts[i].Target = inHome(m.Target, home)
		if why := spec.UnfitForMount(mounts[i].Target); why != "" {
			return nil, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"Nothing can be put at %s (%s is the home of the user), %s.", m.Target, home, why)
		}
	}
	return mounts, nil
}

// inHome replaces "~" at the beginning of a target.
func inHome(target, home string) string {
	if !hostfiles.InHome(target) {
		return target
	}
	return path.Join(home, strings.TrimPrefix(target, "~"))
}

func envList(envs map[string]string) []string {
	list := make([]string, 0, len(envs))
	for _, key := range slices.Sorted(maps.Keys(envs)) {
		list = append(list, key+"="+envs[key])
	}
	return list
}

// defaultUser is the user of execs that name none; empty means root.
func defaultUser(spec *agboxv1.CreateSpec, image runtime.Image) string {
	return cmp.Or(spec.GetUser(), image.User)
}
