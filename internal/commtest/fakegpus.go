//go:build cgo && linux

package commtest

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/fakegpu"
)

// fakeLibraries builds the fake versions of CUDA's libraries, once.
var fakeLibraries = sync.OnceValue(func() error {
	dir, err := os.MkdirTemp("", "fakegpu")
	if err != nil {
		return err
	}
	return fakegpu.Libraries(dir)
})

// FakeGPUs opens n fake GPUs with all kernels, and closes them when the test ends. The test process opens
// no real GPU from then on. faults are lines for [fakegpu.Control]. FakeGPUs skips the test if the machine
// has no C compiler.
func FakeGPUs(t testing.TB, n int, faults ...string) []device.Device {
	t.Helper()
	if err := fakeLibraries(); errors.Is(err, exec.ErrNotFound) {
		t.Skip("no fake libraries: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	release, err := fakegpu.Control(faults...)
	if err != nil {
		t.Fatal(err)
	}
	var all []device.Device
	t.Cleanup(func() {
		release()
		for _, dev := range all {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range n {
		dev, err := cuda.Open(i, nil)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, dev)
	}
	return all
}
