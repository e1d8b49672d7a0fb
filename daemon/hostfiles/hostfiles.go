// Package hostfiles decides what may leave the host: the sources of mounts, copies and
// the workspace. One rule applies to all of them (spec.DangerousSource), under whatever
// name a source hides. The package also packs what is copied.
//
// A source is opened first and checked then: the rule applies to the file that the
// descriptor holds, not to a name that may mean another file a moment later.
package hostfiles

import (
	"github.com/agbox/agbox/internal/fault"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// Problem is a source that cannot be used.
type Problem struct {
	// Path is the path of the field in the spec: names and indexes, outermost first.
	Path []any
	Err  *fault.Error
}

// Spec checks all sources of a spec and returns all problems.
func (c Checker) Spec(s *agboxv1.CreateSpec) []Problem {
	var all []Problem
	tell := func(err error, path ...any) {
		if f := fault.Of(err); f != nil {
			all = append(all, Problem{path, f})
		}
	}
	look := func(source string, use Use, path ...any) {
		held, err := c.Hold(source, use, s.GetSecurity().GetAllowDangerousMounts())
		tell(c.coverable(s, held, err, use), path...)
	}
	for i, m := range s.GetMounts() {
		look(m.GetSource(), MountUse(m.GetWritable()), "mounts", i, "source")
	}
	for i, copied := range s.GetCopies() {
		look(copied.GetSource(), Copied, "copies", i, "source")
	}
	build := func(b *agboxv1.BuildSpec, path ...any) {
		if b.GetContext() != "" {
			look(b.GetContext(), Copied, append(path, "context")...)
		}
		for i, f := range b.GetFeatures() {
			look(f.GetSource(), Copied, append(path[:len(path):len(path)], "features", i, "source")...)
		}
	}
	build(s.GetBuild(), "build")
	for i, service := range s.GetServices() {
		build(service.GetBuild(), "services", i, "build")
		for j, copied := range service.GetCopies() {
			look(copied.GetSource(), Copied, "services", i, "copies", j, "source")
		}
	}
	if work := s.GetAgent().GetWork(); work != "" {
		_, err := c.Work(work, s.GetSecurity().GetAllowDangerousMounts())
		tell(err, "agent", "work")
	}
	if w := s.GetWorkspace(); w != nil {
		held, err := c.Workspace(w, s.GetSecurity().GetAllowDangerousMounts())
		tell(c.coverable(s, held, err, MountUse(w.GetMount())), "workspace", "source")
	}
	return all
}

// coverable closes a source and returns why it cannot be used: err, or that it cannot be
// covered.
func (c Checker) coverable(s *agboxv1.CreateSpec, held *Source, err error, use Use) error {
	if err != nil {
		return err
	}
	defer held.Close()
	if use == Writable && !s.GetSecurity().GetWritableConfig() {
		_, err = c.Covers(held)
	}
	return err
}

// Workspace holds the source of a workspace, which must be a folder.
func (c Checker) Workspace(w *agboxv1.WorkspaceSpec, force bool) (*Source, error) {
	use := Copied
	if w.GetMount() {
		use = Writable
	}
	held, err := c.Hold(w.GetSource(), use, force)
	if err == nil && !held.info.IsDir() {
		held.Close()
		return nil, refusal("The workspace %s is a file: name the folder of the project.", w.GetSource())
	}
	return held, err
}
