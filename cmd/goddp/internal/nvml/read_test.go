//go:build cgo && linux

package nvml

import (
	"reflect"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

func TestEmulatedReadGPUs(t *testing.T) {
	fakegpu.Use(t, "nvml_throttle 3 65", "nvml_ecc 3 2", "nvml_processes 3 4", "nvml_nvlinks 3 16")
	host, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	good := GPU{Name: "fakegpu 2", BusID: "0000:02:00.0", Clock: 1980, MaxClock: 1980, NVLinks: 18}
	bad := GPU{Name: "fakegpu 3", BusID: "0000:03:00.0", Clock: 1980, MaxClock: 1980, NVLinks: 16, ECCErrors: 2, Processes: 4,
		Slowdowns: []string{"temperature, by the hardware"}} // the GPU is idle as well, which is no fault
	if host.Driver != "580.95.05" || len(host.GPUs) != 16 || !reflect.DeepEqual(host.GPUs[2], good) || !reflect.DeepEqual(host.GPUs[3], bad) {
		t.Errorf("got %+v", host)
	}
}

func TestEmulatedReadBlockedPeers(t *testing.T) {
	fakegpu.Use(t, "nvml_blocked 1")
	host, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(host.GPUs[0].BlockedPeers); n != 0 {
		t.Errorf("GPU 0 cannot read %d others", n)
	}
	if n := len(host.GPUs[1].BlockedPeers); n != 15 {
		t.Errorf("GPU 1 cannot read %d others, want 15", n)
	}
}
