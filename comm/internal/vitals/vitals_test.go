//go:build cgo && linux

package vitals

import (
	"maps"
	"os"
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
	if a, b := <-got, <-got; a != telemetry.CPUWaitingThreads || b != telemetry.TCPResent {
		t.Errorf("got %s, %s", a, b)
	}
}
