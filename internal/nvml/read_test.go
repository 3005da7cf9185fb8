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
	fakegpu.Use(t, "nvml_throttle 3 65", "nvml_clock 3 1050", "nvml_temperature 3 91", "nvml_ecc 3 2", "nvml_processes 3 4", "nvml_nvlinks 3 16")
	host, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	good := GPU{Name: "fakegpu 2", BusID: "0000:02:00.0", State: State{Clock: 1980, MaxClock: 1980, Slowdowns: 1, Temperature: 45, Power: 350, PowerLimit: 700, NVLinks: 18}}
	bad := GPU{Name: "fakegpu 3", BusID: "0000:03:00.0", Processes: 4,
		State: State{Clock: 1050, MaxClock: 1980, Slowdowns: 65, Temperature: 91, Power: 350, PowerLimit: 700, NVLinks: 16, ECCErrors: 2}}
	if host.Driver != "580.95.05" || len(host.GPUs) != 16 || !reflect.DeepEqual(host.GPUs[2], good) || !reflect.DeepEqual(host.GPUs[3], bad) {
		t.Errorf("got %+v", host)
	}
	if got, want := bad.Slowdowns.Faults(), "temperature, by the hardware"; got != want { // the GPU is idle as well, which is no fault
		t.Errorf("got %q, want %q", got, want)
	}
	m, err := Watch(bad.BusID)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if s, err := m.Read(); s != bad.State || err != nil {
		t.Errorf("got %+v, %v", s, err)
	}
	if m, err := Watch("0000:99:00.0"); err == nil || m != nil {
		t.Errorf("an unknown GPU: got %v, %v", m, err)
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

// BenchmarkMonitor measures what a sample of a real GPU costs.
func BenchmarkMonitor(b *testing.B) {
	host, err := Read()
	if err != nil || len(host.GPUs) == 0 {
		b.Skip("no GPU: ", err)
	}
	m, err := Watch(host.GPUs[0].BusID)
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	for b.Loop() {
		if _, err := m.Read(); err != nil {
			b.Fatal(err)
		}
	}
}
