package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/nvml"
)

func checkGPUs(ranks []Facts) (good string, findings []Finding) {
	for _, f := range ranks {
		if f.GPUError != "" {
			findings = append(findings, Finding{Broken, fmt.Sprintf("rank %d on %s has no GPU: %s", f.Rank, f.Host, f.GPUError),
				"start as many ranks on a host as it has GPUs (--nproc-per-node gpu), and look at CUDA_VISIBLE_DEVICES and " + jobenv.DeviceVar})
		}
	}
	for _, f := range hosts(ranks) {
		if f.NVML == nil {
			continue
		}
		most := 0
		for _, g := range f.NVML.GPUs {
			most = max(most, g.NVLinks)
		}
		for i, g := range f.NVML.GPUs {
			if !slices.ContainsFunc(ranks, func(r Facts) bool { return r.Node == f.Node && slices.Contains(r.VisibleGPUs, g.BusID) }) {
				continue // another job may have it
			}
			where := fmt.Sprintf("%s, GPU %d (%s, %s): ", f.Host, i, g.Name, g.BusID)
			if faults := g.Slowdowns.Faults(); faults != "" {
				findings = append(findings, Finding{Slow, where + fmt.Sprintf("its clock is %d MHz of %d because of: %s", g.Clock, g.MaxClock, faults),
					"look at its cooling and its power supply (nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER)"})
			}
			if g.ECCErrors > 0 {
				findings = append(findings, Finding{Broken, where + fmt.Sprintf("%d uncorrected memory errors, want 0", g.ECCErrors),
					"drain the host and reset the GPU (nvidia-smi -r); replace the GPU if the errors return"})
			}
			if g.Processes > 0 && g.Utilization > idleGPU {
				findings = append(findings, Finding{Slow, where + fmt.Sprintf("kernels of other processes (%d) run on it for %d%% of the time; want an idle GPU", g.Processes, g.Utilization),
					"end them (nvidia-smi names them), or leave this GPU out with CUDA_VISIBLE_DEVICES"})
			}
			if g.NVLinks < most && (g.NVLinks > 0 || most >= nvLinksOfAll) {
				findings = append(findings, Finding{Slow, where + fmt.Sprintf("%d NVLinks are active, but %d on another GPU of the host", g.NVLinks, most),
					"look at nvidia-smi nvlink -s and the fabric manager's log, and reset the GPU"})
			}
			if allHaveNVLinks(f.NVML) && len(g.BlockedPeers) > 0 {
				findings = append(findings, Finding{Slow, where + "the GPUs have NVLink, and it cannot read the memory of " + strings.Join(g.BlockedPeers, ", "),
					"look at nvidia-smi topo -p2p r, the IOMMU's settings and the fabric manager"})
			}
		}
	}
	if !slices.ContainsFunc(ranks, func(f Facts) bool { return f.GPU != "" || f.GPUError != "" }) {
		return "none is used: the ranks compute on the CPU", findings
	}
	if h := ranks[0].NVML; h != nil && len(h.GPUs) > 0 {
		g := h.GPUs[max(0, slices.IndexFunc(h.GPUs, func(g nvml.GPU) bool { return g.BusID == ranks[0].GPU }))]
		good = fmt.Sprintf("%d × %s at %d of %d MHz, no ECC errors", len(ranks[0].VisibleGPUs), g.Name, g.Clock, g.MaxClock)
		if g.Processes > 0 {
			good += fmt.Sprintf(", idle processes: %d", g.Processes)
		}
		if g.NVLinks > 0 {
			good += ", " + count(g.NVLinks, "NVLink")
		}
	}
	return good, findings
}

// idleGPU is the share of time, in percent, that other processes' kernels may take without a finding.
const idleGPU = 10

// nvLinksOfAll is the minimum number of active NVLinks per GPU if NVLink connects all GPUs of a host. Bridges between
// two GPUs have at most four.
const nvLinksOfAll = 6

// allHaveNVLinks reports whether NVLink connects all GPUs of a host.
func allHaveNVLinks(h *nvml.Host) bool {
	return h != nil && len(h.GPUs) > 1 && !slices.ContainsFunc(h.GPUs, func(g nvml.GPU) bool { return g.NVLinks < nvLinksOfAll })
}

func checkSharing(ranks []Facts) (good string, findings []Finding) {
	users := map[string]int{} // by host and bus id: the first rank. Agents of two nodes may run on one host.
	for _, f := range ranks {
		if f.GPU == "" {
			continue
		}
		key := cmp.Or(f.HostID, fmt.Sprint(f.Node)) + " " + f.GPU
		if first, ok := users[key]; ok {
			findings = append(findings, Finding{Broken, fmt.Sprintf("ranks %d and %d on %s use the same GPU, %s; NCCL wants one for each rank", first, f.Rank, f.Host, f.GPU),
				"start one rank for each GPU, unset " + jobenv.DeviceVar + " or let it be cuda, and give CUDA_VISIBLE_DEVICES all GPUs of the host"})
			continue
		}
		users[key] = f.Rank
	}
	if len(users) > 1 {
		good = "no two ranks use the same GPU"
	}
	return good, findings
}

// slowGPU is the share of the fastest rank's speed below which a GPU is slow. GPUs of one kind differ by
// some percent, by their temperature and voltage.
const slowGPU = 0.85

func checkSpeed(ranks []Facts) (good string, findings []Finding) {
	fastest := slices.MaxFunc(ranks, func(a, b Facts) int { return cmp.Compare(a.TFLOPS, b.TFLOPS) })
	slowest := fastest.TFLOPS
	for _, f := range ranks {
		if f.GPU == "" || f.TFLOPS == 0 {
			continue
		}
		slowest = min(slowest, f.TFLOPS)
		if f.TFLOPS < slowGPU*fastest.TFLOPS {
			findings = append(findings, Finding{Slow, fmt.Sprintf("a matrix product on rank %d (%s, GPU %s) runs at %.0f TFLOPS, and on rank %d (%s) at %.0f", f.Rank, f.Host, f.GPU, f.TFLOPS, fastest.Rank, fastest.Host, fastest.TFLOPS),
				"compare the two GPUs' clocks, power limits and temperatures (nvidia-smi -q -d CLOCK,POWER,TEMPERATURE); every step waits for the slowest rank"})
		}
	}
	if fastest.GPU != "" && fastest.TFLOPS > 0 {
		good = fmt.Sprintf("a bfloat16 product runs at %s TFLOPS", span(fmt.Sprintf("%.0f", slowest), fmt.Sprintf("%.0f", fastest.TFLOPS)))
	}
	return good, findings
}

// span formats a range of values, which may be a single value.
func span(least, most string) string {
	if least == most {
		return least
	}
	return least + " to " + most
}
