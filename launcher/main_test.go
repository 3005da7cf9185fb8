package launcher

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/internal/daemon"
)

// linuxRole plays the roles that only Linux has, and does not return from one.
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
