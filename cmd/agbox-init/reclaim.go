package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/agbox/agbox/internal/filesystem"
	"github.com/agbox/agbox/internal/paths"
)

// reclaimVerb as the first argument makes this program remove what root in a sandbox has
// put into the folders of the host, instead of supervising.
const reclaimVerb = "reclaim"

// reclaim gives the folder of the socket and that of the logs to a user and removes from
// them what the user may be unable to remove. The logs stay. The arguments are the ids of
// the user and its group, or -1 if the folders belong to it.
func reclaim(arguments []string) error {
	var uid, gid int
	if len(arguments) != 2 {
		return fmt.Errorf("%s needs a user id and a group id, and has %q", reclaimVerb, arguments)
	}
	for i, id := range []*int{&uid, &gid} {
		if _, err := fmt.Sscan(arguments[i], id); err != nil {
			return fmt.Errorf("%s: %q is no id: %w", reclaimVerb, arguments[i], err)
		}
	}
	ctx := context.Background()
	return errors.Join(
		filesystem.Reclaim(ctx, paths.InContainerLink, uid, gid, filesystem.Everything),
		filesystem.Reclaim(ctx, paths.InContainerLogs, uid, gid, filesystem.Directories))
}
