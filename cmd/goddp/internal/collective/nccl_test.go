//go:build cgo && linux

package collective

import (
	"errors"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// The collectives also work on devices whose memory the host cannot address, over the fake NCCL, and in CUDA graphs.
func TestEmulatedEveryCollectiveIsRight(t *testing.T) {
	devices := commtest.FakeGPUs(t, 3)
	for _, name := range Names() {
		cfg := quick(t, name)
		cfg.Checks = 2
		commtest.OnDevices(t, devices, nil, func(pg *comm.ProcessGroup) error {
			right := func(r Row) error {
				if pg.Backend() != "nccl" || r.Wrong != 0 {
					t.Errorf("%s over %s: %+v", name, pg.Backend(), r)
				}
				return nil
			}
			err := Run(t.Context(), pg, cfg, right)
			if err == nil && name != "all_to_all" && name != "sendrecv" { // those cannot be captured
				graphs := cfg
				graphs.Graphs = 2
				err = Run(t.Context(), pg, graphs, right)
			}
			return errors.Join(err, pg.Close()) // all ranks close at the same time
		})
	}
}
