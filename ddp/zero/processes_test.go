package zero

import (
	"fmt"
	"testing"

	"github.com/goddp/goddp/internal/commtest"
)

// The tests of this package that work with any number of ranks also run on 2 and 4 real processes.
func TestOnProcesses(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { commtest.Processes(t, n, "GODDP_DEVICE=cpu") })
	}
}
