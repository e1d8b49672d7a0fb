package spec

import (
	"path/filepath"
	"strings"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/spec/document"
)

// absolute makes the host paths of a layer absolute: "~" is the caller's home, and
// relative paths refer to the folder of the file.
func (r *resolver) absolute(layer *agboxv1.CreateSpec, at *document.Origin, dir string) {
	for i, m := range layer.GetMounts() {
		m.Source = r.absolutePath(m.GetSource(), locate(at, "mounts", i, "source"), dir)
	}
	for i, c := range layer.GetCopies() {
		c.Source = r.absolutePath(c.GetSource(), locate(at, "copies", i, "source"), dir)
	}
	if w := layer.GetWorkspace(); w != nil {
		w.Source = r.absolutePath(w.GetSource(), locate(at, "workspace", "source"), dir)
	}
	r.absoluteBuild(layer.GetBuild(), at, dir)
	for i, s := range layer.GetServices() {
		r.absoluteBuild(s.GetBuild(), locate(at, "services", i), dir)
		for j, c := range s.GetCopies() {
			c.Source = r.absolutePath(c.GetSource(), locate(at, "services", i, "copies", j, "source"), dir)
		}
	}
	if a := layer.GetAgent(); a != nil {
		a.Work = r.absolutePath(a.GetWork(), locate(at, "agent", "work"), dir)
	}
}

// absoluteBuild is absolute for the build of a container at an origin.
func (r *resolver) absoluteBuild(b *agboxv1.BuildSpec, at *document.Origin, dir string) {
	if b == nil {
		return
	}
	b.Context = r.absolutePath(b.GetContext(), locate(at, "build", "context"), dir)
	for i, f := range b.GetFeatures() {
		f.Source = r.absolutePath(f.GetSource(), locate(at, "build", "features", i, "source"), dir)
	}
}

func (r *resolver) absolutePath(path string, at *document.Origin, dir string) string {
	home := r.Request.GetHomeDir()
	switch {
	case path == "" || strings.Contains(path, "\x00"):
		return path // reported by the rules
	case strings.HasPrefix(path, "$"):
		r.report.Problem(at, "%.80q begins with a variable, and variables are not replaced here: write ~ for your home, or the path itself", path)
	case path == "~" || strings.HasPrefix(path, "~/"):
		if filepath.IsAbs(home) {
			return filepath.Join(home, path[1:])
		}
		r.report.Problem(at, "%.80q begins with ~, and the request does not say which home that is: give home_dir, or write an absolute path", path)
	case strings.HasPrefix(path, "~"):
		r.report.Problem(at, "%.80q names somebody's home by ~: write an absolute path, or ./%[1]s if the name begins with ~", path)
	case filepath.IsAbs(path):
		return filepath.Clean(path)
	case filepath.IsAbs(dir):
		return filepath.Join(dir, path)
	default:
		r.report.Problem(at, "%.80q is relative, and the request does not say to which folder: give config_dir, or write an absolute path", path)
	}
	return path
}
