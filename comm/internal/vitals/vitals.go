// Package vitals reports what may make this process slower than the other ranks: the state of its GPU, threads that wait
// for a CPU core, TCP segments that were sent again, and the speed of the host's network links. It reads them once a second,
// in a goroutine of its own, so no step waits for them. Without a reporter it reads nothing.
package vitals

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/nvml"
	"github.com/goddp/goddp/internal/telemetry"
)

// every is the time between two reports.
const every = time.Second

// stopTime is the maximum wait of stop. NVML may hang if the GPU is broken.
const stopTime = time.Second

// Watch reports until stop is called. It reports about the GPU if dev is one.
func Watch(r *telemetry.Reporter, dev device.Device) (stop func() error) {
	if r == nil {
		return func() error { return nil }
	}
	var busID string
	if d, isGPU := dev.(interface{ BusID() string }); isGPU {
		busID = d.BusID()
	}
	stopped, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		watch(r, busID, stopped)
	}()
	return func() error {
		close(stopped)
		select {
		case <-ended:
		case <-time.After(stopTime):
		}
		return nil
	}
}

// watch reports until stopped is closed. busID is empty if there is no GPU.
func watch(r *telemetry.Reporter, busID string, stopped <-chan struct{}) {
	var gpu *nvml.Monitor
	if busID != "" {
		m, err := nvml.Watch(busID)
		if err == nil { // a host without NVML has no such numbers
			defer m.Close()
			gpu = m
		}
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for last := readCounters(); ; {
		var values []telemetry.Value
		if gpu != nil {
			s, err := gpu.Read()
			if err != nil { // the program itself reports a lost GPU
				gpu = nil
			} else {
				values = describe(&s)
			}
		}
		now := readCounters()
		values = append(values, now.since(&last)...)
		last = now
		if speed := linkSpeed("/sys/class"); speed > 0 {
			values = append(values, telemetry.Value{Name: telemetry.NetworkSpeed, Number: speed})
		}
		r.State(values...)
		select {
		case <-tick.C:
		case <-stopped:
			return
		}
	}
}

// describe returns the values of a GPU's state.
func describe(s *nvml.State) []telemetry.Value {
	flag := func(bits nvml.Slowdowns) float64 {
		if s.Slowdowns&bits != 0 {
			return 1
		}
		return 0
	}
	return []telemetry.Value{
		{Name: telemetry.GPUClock, Number: float64(s.Clock)}, {Name: telemetry.GPUMaxClock, Number: float64(s.MaxClock)},
		{Name: telemetry.GPUTemperature, Number: float64(s.Temperature)},
		{Name: telemetry.GPUPower, Number: s.Power}, {Name: telemetry.GPUPowerLimit, Number: s.PowerLimit},
		{Name: telemetry.GPUSlowedByTemperature, Number: flag(nvml.DriverTemperature | nvml.HardwareTemperature)},
		{Name: telemetry.GPUSlowedByPowerBrake, Number: flag(nvml.PowerBrake)},
		{Name: telemetry.GPUSlowedByHardware, Number: flag(nvml.Hardware)},
		{Name: telemetry.GPUSlowedByPowerLimit, Number: flag(nvml.PowerLimit)},
		{Name: telemetry.GPUECCErrors, Number: float64(s.ECCErrors)}, {Name: telemetry.GPUNVLinks, Number: float64(s.NVLinks)},
	}
}

// counters are numbers of the kernel that only grow.
type counters struct {
	at           time.Time
	waited       float64 // seconds for which this process's threads were runnable, but had no CPU core
	sent, resent float64 // TCP segments of this process's network namespace
}

// readCounters reads the counters. Those that the system does not have are 0.
func readCounters() counters {
	c := counters{at: time.Now()}
	files, _ := filepath.Glob("/proc/self/task/*/schedstat") // the pattern is valid
	for _, file := range files {
		text, _ := os.ReadFile(file) // the thread may have ended
		c.waited += waited(string(text))
	}
	text, _ := os.ReadFile("/proc/self/net/snmp")
	c.sent, c.resent = segments(string(text))
	return c
}

// waited reads the seconds of waiting from a file schedstat of a thread
// (https://docs.kernel.org/scheduler/sched-stats.html).
func waited(schedstat string) float64 {
	fields := strings.Fields(schedstat)
	if len(fields) < 2 {
		return 0
	}
	ns, _ := strconv.ParseFloat(fields[1], 64)
	return ns / 1e9
}

// segments reads the numbers of TCP segments that were sent, and sent again, from the file snmp: a line of names precedes one of
// numbers.
func segments(snmp string) (sent, resent float64) {
	var names []string
	for line := range strings.Lines(snmp) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, name := range names[:min(len(names), len(fields))] {
			switch n, _ := strconv.ParseFloat(fields[i], 64); name {
			case "OutSegs":
				sent = n
			case "RetransSegs":
				resent = n
			}
		}
	}
	return sent, resent
}

// linkSpeed returns the speed of the host's RDMA links in Gbit/s, or that of its fastest network interface if it has no RDMA, or 0
// if the system does not know it. A bad cable makes a link slower. class is /sys/class.
func linkSpeed(class string) (gbit float64) {
	number := func(file string) float64 {
		text, _ := os.ReadFile(file) // a link that is down may have no speed
		first, _, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		v, _ := strconv.ParseFloat(first, 64)
		return v
	}
	ports, _ := filepath.Glob(class + "/infiniband/*/ports/*") // the patterns are valid
	for _, port := range ports {
		if text, _ := os.ReadFile(port + "/state"); strings.Contains(string(text), "ACTIVE") {
			gbit += number(port + "/rate") // "200 Gb/sec (4X HDR)"
		}
	}
	if gbit > 0 {
		return gbit
	}
	devices, _ := filepath.Glob(class + "/net/*/device") // virtual interfaces have none
	for _, device := range devices {
		gbit = max(gbit, number(filepath.Dir(device)+"/speed")/1000)
	}
	return gbit
}

// leastSegments is the number of segments below which the part that was sent again says nothing.
const leastSegments = 100

// since returns what the counters say of the time since they were b.
func (c *counters) since(b *counters) []telemetry.Value {
	took := c.at.Sub(b.at)
	if took < every/2 {
		return nil
	}
	again := 0.0
	if sent := c.sent - b.sent; sent >= leastSegments {
		again = (c.resent - b.resent) / sent
	}
	return []telemetry.Value{
		{Name: telemetry.CPUWaitingThreads, Number: max(0, c.waited-b.waited) / took.Seconds()},
		{Name: telemetry.TCPResent, Number: again},
	}
}
