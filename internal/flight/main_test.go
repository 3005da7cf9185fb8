package flight

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// roleVar is an environment variable that makes this test's executable run a function of roles
// instead of the tests.
const roleVar = "FLIGHT_TEST_ROLE"

var roles = map[string]func(){}

func TestMain(m *testing.M) {
	if role, ok := roles[os.Getenv(roleVar)]; ok {
		role()
	}
	goleak.VerifyTestMain(m)
}
