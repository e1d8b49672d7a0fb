package files

import (
	"context"
	"path"
	"strings"
	"time"

	"github.com/agbox/agbox/daemon/hostfiles"
	"github.com/agbox/agbox/daemon/review"
)

// beginBase begins to record the base of the workspace, which is copied to name in dir.
func (c *copyIn) beginBase(ctx context.Context, one hostfiles.Copy, dir, name string) (err error) {
	c.about = review.AboutBase{Source: one.Source, Target: path.Join(dir, name), Excludes: one.Excludes}
	for _, other := range one.Foreign {
		if other, err = c.resolve(ctx, other); err != nil {
			return err
		}
		if below, ok := strings.CutPrefix(path.Clean(other), c.about.Target+"/"); ok {
			c.about.Foreign = append(c.about.Foreign, below)
		}
	}
	c.base, err = review.RecordBase(c.files.paths.GuestBase(c.lk.SandboxID), name)
	return err
}

// finishBase completes the base after the last copy. The caller records only then that all
// is copied, so a daemon that is killed before copies everything again.
func (c *copyIn) finishBase(ctx context.Context) error {
	if c.base == nil || ctx.Err() != nil {
		return ctx.Err()
	}
	c.about.CopiedAt = time.Now().UnixNano()
	base := c.base
	c.base = nil
	return base.Finish(c.about)
}

// discard removes an incomplete base.
func (c *copyIn) discard() {
	if c.base != nil {
		c.base.Discard()
	}
}
