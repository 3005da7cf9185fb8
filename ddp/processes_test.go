package ddp

import (
	"fmt"
	"testing"

	"github.com/goddp/goddp/internal/commtest"
)

// The tests of this package that take any number of ranks run on 2 and on 4 real
// processes as well.
func TestOnProcesses(t *testing.T) {
	for _, n := range []int{2, 4} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { commtest.Processes(t, n, "GODDP_DEVICE=cpu") })
	}
}
