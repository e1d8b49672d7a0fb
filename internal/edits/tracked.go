package edits

import (
	"context"
	"strings"
)

// Tracked returns the paths below a folder that git tracks, relative to it, with those of its
// submodules. Nothing of the repository is executed. The folder has no symbolic links.
func Tracked(ctx context.Context, folder string) ([]string, error) {
	where, err := workTree(ctx, folder)
	if err != nil {
		return nil, err
	}
	g := &git{ctx: ctx, dir: folder, gitDir: where[0], env: []string{"GIT_WORK_TREE=" + where[2]}}
	out, err := g.run(nil, "ls-files", "-z", "--recurse-submodules")
	if err != nil || len(out) == 0 {
		return nil, err
	}
	return strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"), nil
}
