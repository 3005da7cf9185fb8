package launcher

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	ReaperMain()
	if role := os.Getenv(testRoleVar); role != "" {
		testWorker(role)
	}
	goleak.VerifyTestMain(m)
}
