package flight

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roleVar makes this test's executable something else: what roles says.
const roleVar = "FLIGHT_TEST_ROLE"

var roles = map[string]func(){}

func TestMain(m *testing.M) {
	if role, ok := roles[os.Getenv(roleVar)]; ok {
		role()
	}
	goleak.VerifyTestMain(m)
}
