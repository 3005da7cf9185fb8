package nvml

// GPU is the state of one GPU.
type GPU struct {
	Name  string // "NVIDIA H200"
	BusID string // as CUDA writes it, in capitals: "0000:3B:00.0"
	// Clock and MaxClock are the current and the highest clock of the multiprocessors, in MHz.
	Clock, MaxClock int
	// Slowdowns are the reasons why the clock is low now, except load and settings.
	Slowdowns []string
	// ECCErrors is the number of uncorrected memory errors since the driver was loaded; 0 if the GPU
	// has no ECC.
	ECCErrors uint64
	// Utilization is the share of the last second in which a kernel ran, in percent.
	Utilization int
	// Processes is the number of processes with a CUDA context on the GPU.
	Processes int
	// NVLinks is the number of active NVLinks of the GPU.
	NVLinks int
	// BlockedPeers are the bus ids of the host's GPUs whose memory this GPU cannot read directly.
	BlockedPeers []string
}

// Host is what NVML says about a host.
type Host struct {
	Driver string // "580.95.05"
	GPUs   []GPU
}

// slowdowns returns the names of those bits of nvmlClocksThrottleReasons that say that something is
// wrong. Idleness, a chosen clock and the power limit, which a GPU under load meets, are no faults.
func slowdowns(reasons uint64) (names []string) {
	for _, r := range []struct {
		bit  uint64
		name string
	}{{0x08, "hardware slowdown"}, {0x20, "temperature, by the driver"}, {0x40, "temperature, by the hardware"}, {0x80, "power brake"}} {
		if reasons&r.bit != 0 {
			names = append(names, r.name)
		}
	}
	return names
}
