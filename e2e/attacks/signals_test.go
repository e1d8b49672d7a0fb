package attacks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/agbox/agbox/client"
	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

// fewSignals is the limit of queued signals in the test. It is much less than the host's
// limit, so the test uses up nothing that another program needs.
const fewSignals = "2000"

// queueSignals queues signals of its user until the kernel queues no more, and holds them.
const queueSignals = `
use POSIX ":signal_h"; $| = 1;
sigprocmask(SIG_BLOCK, POSIX::SigSet->new(40));
sub full { open my $f, "<", "/proc/self/status"; local $/; <$f> =~ /^SigQ:\s+(\d+)\/(\d+)/m; return $1 >= $2 }
until (full()) { kill 40, $$ for 1 .. 100 }
print "full\n"; sleep;
`

// bothStreams writes numbered lines to both streams in turn, as fast as it can.
const bothStreams = `for my $i (0 .. 9999) { syswrite($i % 2 ? STDERR : STDOUT, "$i\n") }`

func TestSignalsThatASandboxQueuesDoNotChangeTheOrderOfAnother(t *testing.T) {
	t.Parallel()
	Row(t, 11, "a sandbox queues all signals that the kernel allows its user")
	in := harness.New(t)
	hog := in.Create(t, "hog", harness.ImageDebian, "--ulimit", "sigpending="+fewSignals)
	in.Start(t, "exec", hog, "--", "perl", "-e", queueSignals).AwaitOutput(t, "full")
	// The signals are also held while a sandbox starts.
	box := in.Create(t, "box", harness.ImageDebian, "--ulimit", "sigpending="+fewSignals)
	job := in.Must(t, "exec", "-d", box, "--", "perl", "-e", bothStreams)
	next := 0
	var rest [3]string
	for item, err := range in.Client(t).FollowLogs(harness.Bounded(t), job, client.LogOptions{Follow: true}) {
		if err != nil {
			t.Fatal(err)
		}
		text := rest[item.Stream] + string(item.Data)
		for line, after, whole := strings.Cut(text, "\n"); whole; line, after, whole = strings.Cut(text, "\n") {
			stream := agboxv1.LogStream_LOG_STREAM_STDOUT
			if next%2 == 1 {
				stream = agboxv1.LogStream_LOG_STREAM_STDERR
			}
			if line != fmt.Sprint(next) || item.Stream != stream {
				t.Fatalf("line %d is %q on %v", next, line, item.Stream)
			}
			next++
			text = after
		}
		rest[item.Stream] = text
	}
	if next != 10_000 {
		t.Errorf("there are %d lines", next)
	}
}
