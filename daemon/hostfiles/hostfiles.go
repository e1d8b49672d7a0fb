// Package hostfiles decides what may leave the host: the sources of mounts, copies and
// the workspace. One rule applies to all of them (spec.DangerousSource), under whatever
// name a source hides. The package also reads the operator's policy, and packs what is copied.
//
// A source is opened first and checked then: the rule applies to the file that the
// descriptor holds, not to a name that may mean another file a moment later.
package hostfiles

import (
	"slices"

	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Problem is a source that cannot be used.
type Problem struct {
	// Path is the path of the field in the spec: names and indexes, outermost first.
	Path []any
	Err  *fault.Error
}

// Field is a field of a spec that names a path of the host.
type Field struct {
	// Path is the path of the field in the spec, as in Problem.
	Path   []any
	Source *string
	Use    Use
	// OfBuild is set if only the build of an image reads the source.
	OfBuild bool
}

// Sources returns all fields of a spec that name a path of the host.
func Sources(s *agboxv1.CreateSpec) []Field {
	var all []Field
	add := func(source *string, use Use, path ...any) {
		all = append(all, Field{Path: path, Source: source, Use: use})
	}
	copies := func(list []*agboxv1.CopySpec, path ...any) {
		for i, c := range list {
			add(&c.Source, Copied, slices.Concat(path, []any{"copies", i, "source"})...)
		}
	}
	build := func(b *agboxv1.BuildSpec, path ...any) {
		if b.GetContext() != "" {
			all = append(all, Field{Path: slices.Concat(path, []any{"build", "context"}), Source: &b.Context, Use: Copied, OfBuild: true})
		}
		for i, f := range b.GetFeatures() {
			all = append(all, Field{Path: slices.Concat(path, []any{"build", "features", i, "source"}), Source: &f.Source, Use: Copied, OfBuild: true})
		}
	}
	for i, m := range s.GetMounts() {
		add(&m.Source, MountUse(m.GetWritable()), "mounts", i, "source")
	}
	copies(s.GetCopies())
	build(s.GetBuild())
	for i, service := range s.GetServices() {
		build(service.GetBuild(), "services", i)
		copies(service.GetCopies(), "services", i)
	}
	if a := s.GetAgent(); a.GetWork() != "" {
		add(&a.Work, Copied, "agent", "work")
	}
	if w := s.GetWorkspace(); w != nil {
		add(&w.Source, workspaceUse(w), "workspace", "source")
	}
	return all
}

// Spec checks all sources of a spec and returns all problems.
func (c Checker) Spec(s *agboxv1.CreateSpec) []Problem {
	var all []Problem
	for _, field := range Sources(s) {
		if f := fault.Of(c.usable(s, field)); f != nil {
			all = append(all, Problem{field.Path, f})
		}
	}
	return all
}

// usable returns why a source cannot be used.
func (c Checker) usable(s *agboxv1.CreateSpec, field Field) error {
	force := s.GetSecurity().GetAllowDangerousMounts()
	var held *Source
	var err error
	switch field.Path[0] {
	case "agent":
		_, err = c.Work(*field.Source, force)
		return err
	case "workspace":
		held, err = c.Workspace(s.GetWorkspace(), force)
	default:
		held, err = c.Hold(*field.Source, field.Use, force)
	}
	if err != nil {
		return err
	}
	defer held.Close()
	if field.Use == Writable && !s.GetSecurity().GetWritableConfig() {
		_, err = c.Covers(held)
	}
	return err
}

// Workspace holds the source of a workspace, which must be a folder.
func (c Checker) Workspace(w *agboxv1.WorkspaceSpec, force bool) (*Source, error) {
	held, err := c.Hold(w.GetSource(), workspaceUse(w), force)
	if err == nil && !held.info.IsDir() {
		held.Close()
		return nil, refusal("The workspace %s is a file: name the folder of the project.", w.GetSource())
	}
	return held, err
}

func workspaceUse(w *agboxv1.WorkspaceSpec) Use {
	if w.GetMount() {
		return Writable
	}
	return Copied
}
