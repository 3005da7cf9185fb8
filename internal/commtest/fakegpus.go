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
	"github.com/goddp/goddp/internal/testkit"
)

// fakeLibraries builds the fake versions of CUDA's libraries, once. It returns the environment that
// selects them.
var fakeLibraries = sync.OnceValues(func() (map[string]string, error) {
	dir, err := os.MkdirTemp("", "fakegpu")
	if err != nil {
		return nil, err
	}
	before, fake := map[string]string{}, map[string]string{}
	for _, v := range fakegpu.Variables {
		before[v] = os.Getenv(v)
	}
	err = fakegpu.Libraries(dir)
	for _, v := range fakegpu.Variables {
		fake[v] = os.Getenv(v)
		if before[v] == "" {
			os.Unsetenv(v)
		} else {
			os.Setenv(v, before[v])
		}
	}
	return fake, err
})

// FakeGPUs opens n fake GPUs with all kernels, and closes them when the test ends. Until then the process
// opens no real GPU. faults are lines for [fakegpu.Control]. FakeGPUs skips the test if the machine has no
// C compiler.
func FakeGPUs(t testing.TB, n int, faults ...string) []device.Device {
	t.Helper()
	testkit.Emulated(t)
	fake, err := fakeLibraries()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("no fake libraries: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	for name, value := range fake {
		t.Setenv(name, value)
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
