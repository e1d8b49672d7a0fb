package hostfiles

import (
	"context"
	"path"
	"strings"

	"github.com/agbox/agbox/workspace/archive"
	"github.com/agbox/agbox/workspace/edits"
)

// tracked is a filter that also leaves out what git does not track.
type tracked struct {
	*filter
	// known are the paths that git tracks, with the folders above them.
	known map[string]bool
}

func (f *filter) onlyTracked(ctx context.Context, one Copy) (archive.Filter, error) {
	names, err := edits.Tracked(ctx, one.Source)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, refusal("What git tracks of %s is not known (%v): leave 'tracked' out, or use_gitignore instead.", one.Source, err).Because(err)
	}
	t := &tracked{filter: f, known: map[string]bool{".": true}}
	for _, name := range names {
		for ; !t.known[name]; name = path.Dir(name) {
			t.known[name] = true
		}
	}
	return t, nil
}

// Skip reports whether a path is excluded. The repository of a folder that is kept is kept.
func (t *tracked) Skip(name string, isDir bool) (bool, error) {
	outer, inner, _ := strings.Cut("/"+name+"/", "/.git/")
	switch outer = strings.Trim(outer, "/"); {
	case outer == strings.Trim(name, "/") && inner == "":
		if !t.known[name] {
			return true, nil
		}
	case !t.known[path.Clean(outer)]:
		return true, nil
	}
	return t.filter.Skip(name, isDir)
}
