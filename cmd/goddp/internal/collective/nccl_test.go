//go:build cgo && linux

package collective

import (
	"errors"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

// The collectives also work on devices whose memory the host cannot address, over the fake NCCL.
func TestEmulatedEveryCollectiveIsRight(t *testing.T) {
	fakegpu.Use(t)
	for _, name := range Names() {
		devices := make([]device.Device, 3)
		for i := range devices {
			var err error
			if devices[i], err = fakegpu.Open(i); err != nil {
				t.Fatal(err)
			}
		}
		cfg := quick(t, name)
		cfg.Checks, cfg.Graphs = 2, 2
		commtest.OnDevices(t, devices, nil, func(pg *comm.ProcessGroup) error {
			err := Run(t.Context(), pg, cfg, func(r Row) error {
				if pg.Backend() != "nccl" || r.Wrong != 0 {
					t.Errorf("%s over %s: %+v", name, pg.Backend(), r)
				}
				return nil
			})
			return errors.Join(err, pg.Close()) // all ranks close at the same time
		})
		for _, d := range devices {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
