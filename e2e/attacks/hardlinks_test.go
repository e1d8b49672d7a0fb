package attacks

import (
	"os"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

func TestHardLinksAreNotManyFilesOnTheHost(t *testing.T) {
	t.Parallel()
	Row(t, 125, "a file with many names, to fill the host's disk by a comparison")
	if os.Geteuid() != 0 {
		t.Skip("a small disk needs root")
	}
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
	in.Create(t, "demo", harness.ImageBusybox, "--workspace", dir)
	inside(t, in, "demo", `cd /workspace; dd if=/dev/urandom of=f bs=1M count=10 2>/dev/null; for i in $(seq 100); do ln f f$i; done`)
	in.Must(t, "diff", "demo", "--stat")
	in.Must(t, "apply", "demo", "--check")
	in.Must(t, "rm", "-f", "demo")
}
