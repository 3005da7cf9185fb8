package launcher

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/internal/daemon"
)

// linuxRole runs the roles that exist only on Linux. It does not return if it ran one.
var linuxRole = func(role string) {}

func TestMain(m *testing.M) {
	daemon.Main()
	ReaperMain()
	role := os.Getenv(testRoleVar)
	linuxRole(role)
	if role != "" {
		testWorker(role)
	}
	goleak.VerifyTestMain(m)
}
