//go:build cgo && linux

package vitals

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/telemetry"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

func TestCounters(t *testing.T) {
	if got := waited("1234567890 2500000000 77\n"); got != 2.5 {
		t.Errorf("waited %v", got)
	}
	sent, resent := segments("Ip: Forwarding\nIp: 1\nTcp: RtoAlgorithm OutSegs RetransSegs InErrs\nTcp: 1 2000 30 0\nUdp: OutSegs\nUdp: 7\n")
	if sent != 2000 || resent != 30 {
		t.Errorf("%v of %v segments again", resent, sent)
	}
}

// The links of RDMA adapters count together, without those that are down. Of other interfaces the fastest counts that is not virtual.
func TestLinkSpeed(t *testing.T) {
	class := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(class, name)), 0o777), os.WriteFile(filepath.Join(class, name), []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(gbit float64) {
		t.Helper()
		if got := linkSpeed(class); got != gbit {
			t.Errorf("%v Gbit/s, want %v", got, gbit)
		}
	}
	want(0)
	write("net/eth0/speed", "25000\n")
	write("net/eth1/speed", "-1\n")
	write("net/eth0/device/vendor", "0x15b3\n")
	write("net/eth1/device/vendor", "0x15b3\n")
	write("net/docker0/speed", "100000\n")
	want(25)
	for i, state := range []string{"4: ACTIVE\n", "4: ACTIVE\n", "1: DOWN\n"} {
		write(fmt.Sprintf("infiniband/mlx5_%d/ports/1/state", i), state)
		write(fmt.Sprintf("infiniband/mlx5_%d/ports/1/rate", i), "200 Gb/sec (4X HDR)\n")
	}
	want(400)
}

// gpu is a device of which only the bus id matters.
type gpu struct{ device.Device }

func (gpu) BusID() string { return "0000:03:00.0" }

// What NVML says of the rank's GPU is reported, until stop returns.
func TestEmulatedWatch(t *testing.T) {
	fakegpu.Use(t, "nvml_throttle 3 65", "nvml_clock 3 1050", "nvml_temperature 3 91")
	values := make(chan map[string]float64, 10)
	r := telemetry.NewReporter(func(b []byte) error {
		_, err := telemetry.Decode(b, func(r *telemetry.Record) {
			got := map[string]float64{}
			for _, v := range r.Values {
				got[v.Name] = v.Number
			}
			values <- got
		})
		return err
	}, time.Now)
	stop := Watch(r, gpu{})
	got := <-values
	delete(got, telemetry.NetworkSpeed) // the test's host may know it
	if err := stop(); err != nil {
		t.Error(err)
	}
	want := map[string]float64{"gpu_clock_mhz": 1050, "gpu_max_clock_mhz": 1980, "gpu_temperature_celsius": 91, "gpu_power_watts": 350, "gpu_power_limit_watts": 700,
		"gpu_slowed_by_temperature": 1, "gpu_slowed_by_power_brake": 0, "gpu_slowed_by_hardware": 0, "gpu_slowed_by_power_limit": 0, "gpu_ecc_errors": 0, "gpu_nvlinks": 18}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// Without a GPU, the first report comes after a second.
func TestHostIsWatched(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Requires("/proc/self/schedstat", func() error { _, err := os.Stat("/proc/self/schedstat"); return err }))
	got := make(chan string, 10)
	r := telemetry.NewReporter(func(b []byte) error {
		_, err := telemetry.Decode(b, func(r *telemetry.Record) {
			for _, v := range r.Values {
				got <- v.Name
			}
		})
		return err
	}, time.Now)
	defer Watch(r, nil)()
	for _, want := range []string{telemetry.CPUWaitingThreads, telemetry.TCPResent} {
		for name := ""; name != want; name = <-got {
			if name != "" && name != telemetry.NetworkSpeed {
				t.Errorf("got %s, want %s", name, want)
			}
		}
	}
}
