package attacks

import (
	"strings"
	"testing"

	"github.com/agbox/agbox/e2e/internal/harness"
)

// kernelCalls prints the error of each call: io_uring_setup, a socket of AF_VSOCK, one of
// AF_ALG, and one of AF_UNIX. 425 and 41 are the numbers of amd64, 425 and 198 of arm64.
const kernelCalls = `
my $socket = (POSIX::uname())[4] eq "aarch64" ? 198 : 41;
sub try { my ($name, @call) = @_; $! = 0; my $r = syscall(shift @call, @call); printf "%s: %s\n", $name, $r >= 0 ? "allowed" : $!{EPERM} ? "refused" : "reached: $!" }
try("io_uring", 425, 1, 0); try("vsock", $socket, 40, 1, 0); try("alg", $socket, 38, 5, 0); try("unix", $socket, 1, 1, 0);
`

func TestPartsOfTheKernelThatNoCommandNeedsAreRefused(t *testing.T) {
	Row(t, 13, "io_uring, AF_VSOCK and AF_ALG from a sandbox")
	in := harness.New(t)
	box := in.Create(t, "box", harness.ImageDebian)
	want := "io_uring: refused\nvsock: refused\nalg: refused\nunix: allowed"
	if said := in.Must(t, "exec", box, "--", "perl", "-MPOSIX", "-MErrno", "-e", kernelCalls); said != want {
		t.Errorf("the calls give\n%s", said)
	}
	// Who takes the filter away by flag takes it away.
	open := in.Create(t, "open", harness.ImageDebian, "--seccomp-unconfined")
	if said := in.Must(t, "exec", open, "--", "perl", "-MPOSIX", "-MErrno", "-e", kernelCalls); strings.Contains(said, "io_uring: refused") {
		t.Errorf("without the filter the calls give\n%s", said)
	}
}
