// Package cputest opens devices for tests.
package cputest

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// New returns a CPU device that the end of the test closes.
func New(t testing.TB) device.Device {
	dev := cpu.New(nil)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}
