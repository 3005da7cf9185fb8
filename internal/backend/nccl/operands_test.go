//go:build cgo && linux

package nccl_test

import (
	"runtime"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/fakegpu"
)

// Which operands may share memory is the same where the host cannot address it. Package
// commtest has the test on GPUs.
func TestOperands(t *testing.T) {
	control(t)
	devices := make([]device.Device, 2)
	for i := range devices {
		dev, err := fakegpu.Open(i)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		devices[i] = dev
	}
	commtest.Operands(t, len(devices), func(t testing.TB, opts *comm.Options, f func(pg *comm.ProcessGroup) error) {
		commtest.OnDevices(t, devices, opts, f)
		runtime.GC() // the stand-ins have little memory
	})
}
