package links

import (
	"context"
	"time"

	guestv1 "github.com/agbox/agbox/proto/guest/v1"
)

// followPause is how long a link stays whose incarnations are not followed any more. A
// supervisor that stops ends Follow before it has reported the last exits.
const followPause = 2 * time.Second

// follow begins to pass on the news of incarnations. A supervisor that is too old has none.
// The goroutine is one of Go. It ends with the link; if Follow ends earlier, so does the
// link, and the next one follows.
func (l *Links) follow(lk *Link) {
	if l.news == nil || !lk.Conn.Agents() {
		return
	}
	l.Go(func(ctx context.Context) {
		err := lk.Conn.Follow(ctx, func(news *guestv1.IncarnationNews) { l.news.Told(lk, news) })
		l.news.Silent(lk)
		timeout := time.NewTimer(followPause)
		defer timeout.Stop()
		select {
		case <-lk.Conn.Done():
		case <-ctx.Done():
		case <-timeout.C:
			l.log.Warn("the supervisor does not tell about incarnations of agents; the link is made anew", "sandbox_id", lk.SandboxID, "error", err)
			lk.Break()
		}
	})
}
