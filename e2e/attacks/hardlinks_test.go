package attacks

import (
	"errors"
	"io"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/agbox/agbox/e2e/internal/harness"
	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
)

func TestHardLinksAreNotManyFilesOnTheHost(t *testing.T) {
	t.Parallel()
	Row(t, 125, "a file with many names, to fill the host's disk by a comparison")
	home, err := os.MkdirTemp("/tmp", "abh")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	harness.SmallDisk(t, home, 300)
	temp := t.TempDir()
	harness.SmallDisk(t, temp, 4)
	in := harness.New(t, harness.At(home), harness.With("TMPDIR="+temp))
	dir := write(t, in, "project", map[string]string{"a": "1\n"})
	box := in.Create(t, "demo", harness.ImageBusybox, "--workspace", dir)
	inside(t, in, "demo", `cd /workspace; dd if=/dev/urandom of=f bs=1M count=10 2>/dev/null; for i in $(seq 40); do ln f f$i; done`)
	if got := sent(t, in, &agboxv1.CompareWorkspaceRequest{SandboxId: box, ContentsOnce: true}); got != 10<<20 {
		t.Errorf("the daemon sends %d bytes", got)
	}
	if got := sent(t, in, &agboxv1.CompareWorkspaceRequest{SandboxId: box, ContentsOnce: true, Stat: true}); got != 0 {
		t.Errorf("for --stat the daemon sends %d bytes", got)
	}
	in.Must(t, "diff", "demo", "--stat")
	in.Must(t, "apply", "demo", "--check")
	in.Must(t, "rm", "-f", "demo")
}

// sent returns how many bytes of contents a comparison sends.
func sent(t *testing.T, in *harness.Install, request *agboxv1.CompareWorkspaceRequest) (bytes int) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+in.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := agboxv1.NewFileServiceClient(conn).CompareWorkspace(harness.Bounded(t), request)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return bytes
		}
		if err != nil {
			t.Fatal(err)
		}
		bytes += len(m.GetBefore()) + len(m.GetAfter())
	}
}
