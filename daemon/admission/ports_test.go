package admission

import (
	"net"
	"testing"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"

	"github.com/agbox/agbox/internal/fault"
)

func TestAPortIsTakenOnlyInTheFamilyOfItsAddress(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for host, want := range map[string]bool{"": true, "127.0.0.1": true, "0.0.0.0": true, "::": false} {
		err := tryPort(t.Context(), &agboxv1.PortMapping{
			ContainerPort: 80, HostIp: host, HostPort: uint32(l.Addr().(*net.TCPAddr).Port), Protocol: agboxv1.PortProtocol_PORT_PROTOCOL_TCP,
		})
		if got := fault.ReasonOf(err) == agboxv1.ErrorReason_PORT_TAKEN; got != want {
			t.Errorf("127.0.0.1 is listened on, and %q asked for: %v, want taken %v", host, err, want)
		}
	}
}
