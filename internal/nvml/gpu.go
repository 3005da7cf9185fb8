package nvml

import "strings"

// State is the state of a GPU at a moment. A number that the GPU does not have is 0.
type State struct {
	// Clock and MaxClock are the current and the highest clock of the multiprocessors, in MHz.
	Clock, MaxClock int
	// Slowdowns are the reasons why the clock is low.
	Slowdowns Slowdowns
	// Temperature is in °C, and Power and PowerLimit are in watts.
	Temperature       int
	Power, PowerLimit float64
	// ECCErrors is the number of uncorrected memory errors since the driver was loaded.
	ECCErrors uint64
	// NVLinks is the number of active NVLinks.
	NVLinks int
}

// GPU is one GPU of a host.
type GPU struct {
	Name  string // "NVIDIA H200"
	BusID string // as CUDA writes it, in capitals: "0000:3B:00.0"
	State
	// Utilization is the share of the last second in which a kernel ran, in percent.
	Utilization int
	// Processes is the number of processes with a CUDA context on the GPU.
	Processes int
	// BlockedPeers are the bus ids of the host's GPUs whose memory this GPU cannot read directly.
	BlockedPeers []string
}

// Host is what NVML says about a host.
type Host struct {
	Driver string // "580.95.05"
	GPUs   []GPU
}

// Slowdowns are bits of nvmlClocksThrottleReasons.
type Slowdowns uint64

const (
	PowerLimit          Slowdowns = 0x04 // a GPU under load meets it: no fault
	Hardware            Slowdowns = 0x08 // one of the following, or another signal
	DriverTemperature   Slowdowns = 0x20
	HardwareTemperature Slowdowns = 0x40
	PowerBrake          Slowdowns = 0x80 // by the power supply
)

// Faults lists the reasons that say that something is wrong, or returns "". Idleness, a chosen clock and the power limit are
// no faults.
func (s Slowdowns) Faults() string {
	var names []string
	for _, r := range []struct {
		bit  Slowdowns
		name string
	}{{Hardware, "hardware slowdown"}, {DriverTemperature, "temperature, by the driver"}, {HardwareTemperature, "temperature, by the hardware"}, {PowerBrake, "power brake"}} {
		if s&r.bit != 0 {
			names = append(names, r.name)
		}
	}
	return strings.Join(names, ", ")
}
