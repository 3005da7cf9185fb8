//go:build cgo && linux

package collective

import (
	"errors"
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/fakegpu"
)

// fakeLibraries builds the libraries once, because a process opens libraries only once.
var fakeLibraries = sync.OnceValue(func() error { return fakegpu.Libraries(scratch) })

// The collectives also work on devices whose memory the host cannot address, over the fake NCCL.
func TestEveryCollectiveIsRightOnDevices(t *testing.T) {
	if err := fakeLibraries(); err != nil {
		t.Skip("no fake GPU libraries: ", err)
	}
	t.Setenv("TMPDIR", t.TempDir()) // the fake libraries make files in TMPDIR
	for _, name := range Names() {
		devices := make([]device.Device, 3)
		for i := range devices {
			var err error
			if devices[i], err = fakegpu.Open(i); err != nil {
				t.Fatal(err)
			}
		}
		cfg := quick(t, name)
		cfg.Checks = 2
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
