package reconcile

import (
	"context"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/ledger"
	"github.com/agbox/agbox/runtime"
)

// Uncovered returns what in the writable mounts of a sandbox's primary would be covered if
// it were made now, but has no cover: absolute paths on the host. notSearched are mounts
// that are too large to find everything.
func (l *Loop) Uncovered(ctx context.Context, sb ledger.Sandbox) (found, notSearched []string, err error) {
	if sb.Spec.GetSecurity().GetWritableConfig() || !mountsHost(sb.Spec) {
		return nil, nil, nil
	}
	primary, err := l.primaryOf(ctx, sb)
	if errdefs.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	mounts, err := l.mountsOf(ctx, primary.ID)
	if err != nil {
		return nil, nil, err
	}
	covered := make(map[string]bool)
	for _, m := range mounts {
		if m.ReadOnly && covering(m, mounts) {
			covered[m.Source] = true
		}
	}
	for _, m := range mounts {
		if m.ReadOnly || covering(m, mounts) || cache(sb.Spec, m) {
			continue
		}
		held, err := hostfiles.Again(m.Source)
		if err != nil {
			continue // it is gone, or it is not what is mounted
		}
		fresh, complete, err := l.host.Uncovered(held, covered)
		held.Close()
		if err != nil {
			return nil, nil, err
		}
		if !complete {
			notSearched = append(notSearched, m.Source)
		}
		for _, at := range fresh {
			if !shadowed(sb.Spec, mounts, m, at) {
				found = append(found, at)
			}
		}
	}
	return found, notSearched, nil
}

// cache reports whether a mount is the cache of a tool.
func cache(s *agboxv1.CreateSpec, m runtime.Mount) bool {
	return slices.ContainsFunc(s.GetToolProjections(), func(p *agboxv1.ToolProjection) bool {
		return p.GetKind() == agboxv1.ProjectionKind_PROJECTION_KIND_CACHE && p.GetSource() == m.Source
	})
}

// shadowed reports whether a path of the host below a mount is behind something else that
// the spec mounts in it, where the sandbox cannot reach it.
func shadowed(s *agboxv1.CreateSpec, mounts []runtime.Mount, m runtime.Mount, at string) bool {
	rel, err := filepath.Rel(m.Source, at)
	if err != nil {
		return false
	}
	target := path.Join(m.Target, rel)
	var others []string
	for _, other := range mounts {
		if !covering(other, mounts) {
			others = append(others, other.Target)
		}
	}
	for _, v := range s.GetVolumes() {
		others = append(others, v.GetTarget())
	}
	for _, t := range s.GetTmpfs() {
		others = append(others, t.GetTarget())
	}
	return slices.ContainsFunc(others, func(other string) bool {
		other = path.Clean(other)
		return strings.HasPrefix(other, path.Clean(m.Target)+"/") && strings.HasPrefix(target+"/", other+"/")
	})
}
