package hostfiles

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/user"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	"github.com/agbox/agbox/spec"
	"github.com/agbox/agbox/workspace/archive"
)

// Copy is one path or file that is copied into a sandbox before it is READY.
type Copy struct {
	// Field is the field of the spec, for messages.
	Field string
	// Source is a path of the host. It is empty if Content is the file.
	Source  string
	Content string
	// Target is the path of the copy. "~" is the home of the user of execs.
	Target string
	// Excludes are patterns of what to exclude. Gitignore adds those of the .gitignore
	// files in the source.
	Excludes  []string
	Gitignore bool
	// Tracked copies only what git tracks, and the repository.
	Tracked bool
	// Ignored gets what is copied of a workspace although a .gitignore names it. It may be nil.
	Ignored *Ignored
	// Owner is "uid" or "uid:gid"; root when empty. If ForUser is set, the copy belongs
	// to the user of execs instead, with the folders that are made above it.
	Owner   string
	ForUser bool
	// Base is set if the copy is the workspace, whose base is kept. Foreign are then the
	// targets of everything else that the spec brings into the container.
	Base    bool
	Foreign []string
	// Added is set if Content is added to the end of the file at Target, unless the file has
	// it. A file that cannot be changed stays as it is.
	Added bool
	// FromAgent is set if the copy is of the folder Target of the sandbox of that agent, From. Its
	// user FromUser must be able to read it; empty means that of execs.
	FromAgent, From, FromUser string
	// Force allows a source that is otherwise refused. Tool is set if a built-in tool
	// brings the copy in.
	Force, Tool bool
}

// Copies returns all copies of a spec, in order.
func Copies(s *agboxv1.CreateSpec) []Copy {
	var all []Copy
	force := s.GetSecurity().GetAllowDangerousMounts()
	if w := s.GetWorkspace(); w != nil && !w.GetMount() {
		all = append(all, Copy{
			Field: "workspace", Source: w.GetSource(), Target: cmp.Or(w.GetTarget(), spec.DefaultWorkspace),
			Excludes: w.GetExcludePatterns(), Gitignore: w.GetUseGitignore(), Tracked: w.GetTracked(), ForUser: true, Base: true, Foreign: otherTargets(s), Force: force,
		})
	}
	if d := s.GetDerived(); d.GetWorkspace() != "" {
		all = append(all, Copy{Field: "workspace", FromAgent: d.GetParent(), FromUser: d.GetUser(), Target: d.GetWorkspace()})
	}
	for i, c := range s.GetCopies() {
		all = append(all, Copy{
			Field: fmt.Sprintf("copies[%d]", i), Source: c.GetSource(), Target: c.GetTarget(),
			Excludes: c.GetExcludePatterns(), Owner: c.GetOwner(), Force: force,
			ForUser: c.GetOwner() == "" && InHome(c.GetTarget()),
		})
	}
	for _, p := range s.GetToolProjections() {
		if k := p.GetKind(); k == agboxv1.ProjectionKind_PROJECTION_KIND_COPY || k == agboxv1.ProjectionKind_PROJECTION_KIND_FILE {
			all = append(all, Copy{
				Field: "tool " + p.GetTool(), Source: p.GetSource(), Content: p.GetContent(), Target: p.GetTarget(),
				ForUser: InHome(p.GetTarget()), Tool: true,
			})
		}
	}
	if s.GetWorkspace().GetMount() {
		all = append(all, Copy{Field: "settings of git", Content: gitSettings, Target: "/etc/gitconfig", Added: true})
	}
	return all
}

// gitSettings are the settings of git for all users of a sandbox that mounts its workspace.
// Files of the host's user are no reason for git to refuse; a path would not be enough,
// because git checks each submodule and worktree apart. The worktrees of the host are not
// missing only because the sandbox cannot see them.
const gitSettings = "# agbox: the workspace belongs to a user of the host.\n[safe]\n\tdirectory = *\n[gc]\n\tworktreePruneExpire = never\n"

// otherTargets returns the targets of all copies, mounts and volumes besides the workspace.
func otherTargets(s *agboxv1.CreateSpec) []string {
	var all []string
	for _, c := range s.GetCopies() {
		all = append(all, c.GetTarget())
	}
	for _, m := range s.GetMounts() {
		all = append(all, m.GetTarget())
	}
	for _, v := range s.GetVolumes() {
		all = append(all, v.GetTarget())
	}
	for _, t := range s.GetTmpfs() {
		all = append(all, t.GetTarget())
	}
	for _, p := range s.GetToolProjections() {
		all = append(all, p.GetTarget())
	}
	return all
}

// Folders packs missing folders, outermost first.
func Folders(w io.Writer, names []string, owner archive.Owner) error {
	out := tar.NewWriter(w)
	var failed error
	for _, name := range names {
		failed = errors.Join(failed, out.WriteHeader(&tar.Header{
			Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, Uid: owner.UID, Gid: owner.GID,
			ModTime: time.Now(), Format: tar.FormatPAX,
		}))
	}
	return errors.Join(failed, out.Close())
}

// Failed adds the name of the copy to an error that does not have it.
func (one Copy) Failed(err error) error {
	source := cmp.Or(one.Source, "a file of agbox")
	if one.FromAgent != "" {
		source = "the workspace of agent " + one.FromAgent
	}
	what := fmt.Sprintf("Copying %s to %s (%s) failed: ", source, one.Target, one.Field)
	if f := fault.Of(err); f != nil {
		return fault.New(f.Class, f.Reason, "%s%s", what, f.Message).With("field", one.Field).Because(err)
	}
	return fmt.Errorf("%s%w", what, err)
}

// Numbers returns the owner that the copy names, root if it names none. The error is a
// fault INVALID_REQUEST.
func (one Copy) Numbers() (archive.Owner, error) {
	uid, gid, both := strings.Cut(one.Owner, ":")
	if !both {
		gid = uid
	}
	var owner archive.Owner
	for _, id := range []struct {
		text string
		to   *int
	}{{uid, &owner.UID}, {gid, &owner.GID}} {
		n, err := strconv.ParseUint(cmp.Or(id.text, "0"), 10, 32)
		if err != nil {
			return owner, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_INVALID_REQUEST,
				"The owner %q is not uid or uid:gid: write numbers, for example 1000:1000.", one.Owner)
		}
		*id.to = int(n)
	}
	return owner, nil
}

// MaxUserFile bounds the files of users and groups of an image, in bytes.
const MaxUserFile = 1 << 20

// InHome reports whether a target is the home of the user of execs or below it: "~", or
// "~/" and more.
func InHome(target string) bool { return target == "~" || strings.HasPrefix(target, "~/") }

// LookUpUser finds a user, uid, user:group or uid:gid in the files of a container. The
// Home is absolute; it is "/" without an entry in passwd. The error is a fault
// USER_NOT_FOUND.
func LookUpUser(name string, passwd, group []byte) (*user.ExecUser, error) {
	who, err := user.GetExecUser(name, &user.ExecUser{Home: "/"}, bytes.NewReader(passwd), bytes.NewReader(group))
	if err != nil {
		return nil, fault.New(errdefs.ErrInvalidArgument, agboxv1.ErrorReason_USER_NOT_FOUND,
			"The user %s is not in the image: choose another one by user, or give it as a number.", name).Because(err)
	}
	if !strings.HasPrefix(who.Home, "/") {
		who.Home = "/"
	}
	return who, nil
}

// Ignored is what a copy has although a .gitignore of its source names it.
type Ignored struct {
	// Files is the number of files, with those in folders that are named.
	Files uint64
	// secrets and others are the first paths that are named. Those of folders end in "/".
	secrets, others []string
}

// Names returns some of the paths that are named, those that look like secrets first.
func (i *Ignored) Names() []string {
	slices.Sort(i.secrets)
	slices.Sort(i.others)
	return slices.Concat(i.secrets, i.others)
}
