package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// The lines have their number among all lines of both streams.
const twoStreams = `i=0; while [ $i -lt 5000 ]; do echo "out $((2*i))"; echo "err $((2*i+1))" >&2; i=$((i+1)); done`

func TestTenThousandLinesOnBothStreamsKeepTheirOrder(t *testing.T) {
	t.Parallel()
	in := newInstall(t)
	in.Create(t, "demo", harness.ImageBusybox)
	exec := strings.TrimSpace(in.Must(t, "exec", "-d", "demo", "--", "sh", "-c", twoStreams))
	ctx := harness.Bounded(t)
	c := in.Client(t)
	for _, when := range []string{"while it runs", "afterwards"} {
		next := 0
		var rest [3]string
		for item, err := range c.FollowLogs(ctx, exec, client.LogOptions{Follow: true}) {
			if err != nil {
				t.Fatal(err)
			}
			text := rest[item.Stream] + string(item.Data)
			for line, after, whole := strings.Cut(text, "\n"); whole; line, after, whole = strings.Cut(text, "\n") {
				name := map[agboxv1.LogStream]string{agboxv1.LogStream_LOG_STREAM_STDOUT: "out", agboxv1.LogStream_LOG_STREAM_STDERR: "err"}[item.Stream]
				if want := fmt.Sprint(name, " ", next); line != want {
					t.Fatalf("%s: line %d is %q on %s", when, next, line, name)
				}
				next++
				text = after
			}
			rest[item.Stream] = text
		}
		if next != 10_000 {
			t.Errorf("%s: %d lines", when, next)
		}
	}
}
