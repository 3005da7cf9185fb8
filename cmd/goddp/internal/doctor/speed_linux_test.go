package doctor

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// A virtual interface, such as a container's, has no speed of its own. Its driver states one that says nothing.
func TestVirtualInterfaceHasNoSpeed(t *testing.T) {
	testkit.Long(t)
	netns.New(t, 1, 1).Hosts[0].Do(func() {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(socket)
		if stated, got := statedSpeed(socket, "eth0"), interfaceSpeed("eth0"); stated != 10e9/8 || got != 0 {
			t.Errorf("a veth states %v bytes/s, want %v, and its speed is %v, want 0", stated, 10e9/8, got)
		}
	})
}
