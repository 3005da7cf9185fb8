package doctor

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/cmd/goddp/internal/nccllog"
	"github.com/goddp/goddp/internal/nvml"
)

// goodRanks returns the facts of a good job: hosts with two ranks each, on GPUs with NVLink.
func goodRanks(hosts int) (ranks []Facts) {
	for r := range 2 * hosts {
		f := Facts{
			Rank: r, Node: r / 2 * 2, Host: "node" + string(rune('a'+r/2)), Environment: map[string]string{"NCCL_SOCKET_IFNAME": "eth"},
			OpenFiles: 65536, LockedMemory: 1 << 40, GPU: []string{"0000:01:00.0", "0000:02:00.0"}[r%2], TFLOPS: 700 - float64(10*r),
			VisibleGPUs:  []string{"0000:01:00.0", "0000:02:00.0"},
			SharedMemory: Space{64 << 30, 64 << 30}, NUMANodes: 2,
			ClockOffset: time.Duration(r) * time.Millisecond, ClockError: time.Millisecond,
			Libraries: []Library{{Name: "OpenBLAS", Error: "OpenBLAS was not found"}, {Name: "NCCL", Path: "libnccl.so.2", Version: "2.28.3"}},
		}
		if r%2 == 0 {
			f.Interfaces = []Interface{{Name: "lo", IsUp: true, IsLoopback: true, MTU: 65536, Addresses: []string{"127.0.0.1/8"}},
				{Name: "eth0", IsUp: true, MTU: 9000, Addresses: []string{"10.0.0.1/24"}}, {Name: "docker0", IsUp: true, MTU: 1500 - r, Addresses: []string{"172.17.0.1/16"}}}
			f.NVML = &nvml.Host{Driver: "580.95.05", GPUs: []nvml.GPU{{Name: "H200", BusID: "0000:01:00.0", State: nvml.State{NVLinks: 18}}, {Name: "H200", BusID: "0000:02:00.0", State: nvml.State{NVLinks: 18}},
				{Name: "H200", BusID: "0000:03:00.0", State: nvml.State{NVLinks: 18}, Processes: 1}}} // the last one is another job's
		}
		ranks = append(ranks, f)
	}
	for r := range ranks { // NVLink within a host is faster than the network
		p := Pair{r, (r + 1) % len(ranks), 40e9 - float64(r)*1e9}
		if r%2 == 0 || hosts == 1 {
			p.BytesPerSecond *= 4
		}
		ranks[r].Pairs = []Pair{p}
	}
	return ranks
}

func TestGoodJobHasNoFinding(t *testing.T) {
	for hosts := 1; hosts <= 4; hosts++ {
		r := Judge(goodRanks(hosts))
		var text bytes.Buffer
		if err := r.WriteText(&text); err != nil || r.Verdict != Good || !strings.HasSuffix(text.String(), "nothing is wrong\n") {
			t.Errorf("%d hosts: %v, %v\n%s", hosts, r.Verdict, err, &text)
		}
	}
}

// A rank that loses the others reports alone, also if it had measured with them before.
func TestRankReportsAlone(t *testing.T) {
	for _, f := range goodRanks(2) {
		f.AllReduce, f.NCCL, f.Failure = 1, &nccllog.Log{Size: 4}, "rank 3 is behind"
		r := Judge(f.Alone())
		bad := slices.DeleteFunc(r.Results, func(r Result) bool { return r.Level == Good })
		if len(bad) != 1 || bad[0].Check != "group" || r.Verdict != Broken {
			t.Errorf("rank %d: %+v", f.Rank, bad)
		}
	}
}

// The report says on what the ranks compute. Without that line nobody would notice that the driver is missing.
func TestReportSaysWhereTheRanksCompute(t *testing.T) {
	ranks := goodRanks(1)
	for _, want := range []string{"2 × H200 at ", "none is used: the ranks compute on the CPU"} {
		report := Judge(ranks)
		i := slices.IndexFunc(report.Results, func(r Result) bool { return r.Check == "gpus" })
		if i < 0 || !strings.HasPrefix(report.Results[i].Good, want) {
			t.Errorf("the results are %+v, want %q of the GPUs", report.Results, want)
		}
		for r := range ranks {
			ranks[r].GPU, ranks[r].VisibleGPUs, ranks[r].NVML = "", nil, nil
		}
	}
}

// Each change of a good job of three hosts has exactly the findings of one check, which hold both values.
func TestFindings(t *testing.T) {
	parse := func(file string) func(t *testing.T, ranks []Facts) {
		return func(t *testing.T, ranks []Facts) {
			text, err := os.ReadFile("../nccllog/testdata/" + file)
			if err != nil {
				t.Fatal(err)
			}
			log := nccllog.Parse(string(text))
			ranks[0].NCCL = &log
		}
	}
	change := func(f func(ranks []Facts)) func(*testing.T, []Facts) {
		return func(_ *testing.T, ranks []Facts) { f(ranks) }
	}
	for name, c := range map[string]struct {
		change func(*testing.T, []Facts)
		check  string
		level  Level
		want   []string // parts of the findings, in order
	}{
		"shared memory":   {change(func(r []Facts) { r[2].SharedMemory.Free = 1 << 20 }), "shared-memory", Broken, []string{"nodeb: /dev/shm has 1024 KiB free of 64 GiB, want 64 MiB for 2 GPUs"}},
		"files":           {change(func(r []Facts) { r[2].OpenFiles = 256 }), "open-files", Broken, []string{"rank 2 on nodeb may open 256 files, want 1024"}},
		"locked memory":   {change(func(r []Facts) { r[0].RDMAAdapters, r[0].LockedMemory = []string{"mlx5_0"}, 64<<10 }), "locked-memory", Broken, []string{"mlx5_0 and may lock 64 KiB, want 1024 MiB"}},
		"wrong interface": {change(func(r []Facts) { r[2].Environment["NCCL_SOCKET_IFNAME"] = "nope0" }), "interfaces", Broken, []string{`nodeb: NCCL_SOCKET_IFNAME is "nope0", and the host has lo, eth0, docker0`}},
		"interface down":  {change(func(r []Facts) { r[0].Interfaces[1].IsUp = false }), "interfaces", Broken, []string{`is "eth", which selects eth0: not up`}},
		"MTU":             {change(func(r []Facts) { r[4].Interfaces[1].MTU = 1500 }), "mtu", Slow, []string{"eth0 has the MTU 9000 on nodea and 1500 on nodec"}},
		"failed ranks":    {change(func(r []Facts) { r[1].Failure, r[4].Failure = "out of memory", "rank 1 has left" }), "group", Broken, []string{"rank 1 on nodea failed: out of memory", "rank 4 on nodec failed: rank 1 has left"}},
		"port":            {change(func(r []Facts) { r[0].PortError = "listen tcp :29500: bind: address already in use" }), "port", Broken, []string{"29500"}},
		"clock":           {change(func(r []Facts) { r[4].ClockOffset = -30 * time.Second }), "clocks", Slow, []string{"the clock of nodec differs from that of nodea by -30s, want at most 1s"}},
		"uncertain clock": {change(func(r []Facts) { r[4].ClockOffset, r[4].ClockError = 2*time.Second, 3*time.Second }), "", Good, nil},
		"NUMA":            {change(func(r []Facts) { r[2].NUMANodes = 8 }), "numa", Slow, []string{"nodeb has 8 NUMA nodes and nodea has 2"}},
		"versions":        {change(func(r []Facts) { r[3].Libraries[1].Version = "2.27.7" }), "libraries", Broken, []string{"2.27.7 on rank 3, 2.28.3 on rank 0"}},
		"shared GPU":      {change(func(r []Facts) { r[3].GPU = r[2].GPU }), "gpu-sharing", Broken, []string{"ranks 2 and 3 on nodeb use the same GPU, 0000:01:00.0"}},
		"slow GPU":        {change(func(r []Facts) { r[5].TFLOPS = 350 }), "gpu-speed", Slow, []string{"rank 5 (nodec, GPU 0000:02:00.0) runs at 350 TFLOPS, and on rank 0 (nodea) at 700"}},
		"hot GPU":         {change(func(r []Facts) { r[2].NVML.GPUs[1].Slowdowns = nvml.PowerBrake }), "gpus", Slow, []string{"nodeb, GPU 1 (H200, 0000:02:00.0): its clock"}},
		"two agents on one host": {change(func(r []Facts) {
			for i := range r {
				r[i].HostID = "b" + r[i].Host
			}
			r[2].HostID = r[0].HostID
		}), "gpu-sharing", Broken, []string{"ranks 0 and 2 on nodeb use the same GPU, 0000:01:00.0"}},
		"no GPU for a rank": {change(func(r []Facts) { r[3].GPU, r[3].GPUError = "", "it wants GPU 1, counted from 0, and sees 1 GPU" }), "gpus", Broken,
			[]string{"rank 3 on nodeb has no GPU: it wants GPU 1, counted from 0, and sees 1 GPU"}},
		"NCCL of one rank": {change(func(r []Facts) {
			for i := range r {
				r[i].Libraries = r[i].Libraries[:1]
			}
			r[0].Libraries = append(r[0].Libraries, Library{Name: "NCCL", Error: "NCCL was not found"})
		}), "libraries", Broken, []string{"rank 0 on nodea: NCCL: NCCL was not found"}},
		"ECC errors": {change(func(r []Facts) { r[2].NVML.GPUs[1].ECCErrors = 3 }), "gpus", Broken, []string{"3 uncorrected memory errors, want 0"}},
		"busy GPU": {change(func(r []Facts) { r[0].NVML.GPUs[0].Processes, r[0].NVML.GPUs[0].Utilization = 1, 62 }), "gpus", Slow,
			[]string{"kernels of other processes (1) run on it for 62% of the time; want an idle GPU"}},
		"an idle process":    {change(func(r []Facts) { r[0].NVML.GPUs[0].Processes, r[0].NVML.GPUs[0].Utilization = 1, 2 }), "", Good, nil},
		"lost NVLinks":       {change(func(r []Facts) { r[0].NVML.GPUs[0].NVLinks = 16 }), "gpus", Slow, []string{"16 NVLinks are active, but 18 on another"}},
		"NVLinks of one GPU": {change(func(r []Facts) { r[0].NVML.GPUs[0].NVLinks = 0 }), "gpus", Slow, []string{"0 NVLinks are active, but 18 on another"}},
		"an NVLink bridge": {change(func(r []Facts) {
			r[0].NVML.GPUs = []nvml.GPU{{Name: "A6000", State: nvml.State{NVLinks: 4}, BusID: "0000:01:00.0"}, {Name: "A6000", State: nvml.State{NVLinks: 4}}, {Name: "A6000", BusID: "0000:02:00.0", BlockedPeers: []string{"0000:01:00.0"}}}
		}), "", Good, nil},
		"old NCCL": {change(func(r []Facts) {
			for i := range r { // both ranks of a host have the same library
				r[i].Libraries[1].Error = "NCCL is 2.18.5, want 2.19.1 or newer"
			}
		}), "libraries", Broken, []string{"rank 0 on nodea: NCCL (libnccl.so.2): NCCL is 2.18.5", "rank 2 on nodeb", "rank 4 on nodec"}},
		"no cuDNN": {change(func(r []Facts) {
			r[2].Libraries = append(r[2].Libraries, Library{Name: "cuDNN", Error: "libcudnn was not found"})
		}), "libraries", Slow, []string{"rank 2 on nodeb: libcudnn was not found; goddp's own, slower kernels"}},
		"NVML fails": {change(func(r []Facts) {
			r[0].Libraries = append(r[0].Libraries, Library{Name: "NVML", Error: "no nvmlInit_v2"})
		}), "libraries", Slow, []string{"states are unknown: no nvmlInit_v2"}},
		"no library of the CPU's, without a GPU": {change(func(r []Facts) {
			for i := range r {
				r[i].GPU = ""
			}
			r[0].Libraries = append(r[0].Libraries[:1], Library{Name: "oneDNN", Error: "oneDNN was not found"})
			for i := range r[1:] {
				r[1+i].Libraries = nil
			}
		}), "libraries", Slow, []string{"OpenBLAS was not found; matrix products on the CPU", "oneDNN was not found; goddp's own"}},
		"slow pairs":           {change(func(r []Facts) { r[1].Pairs[0].BytesPerSecond, r[3].Pairs[0].BytesPerSecond = 1e9, 1e9 }), "pairs", Slow, []string{"rank 1 (nodea) and rank 2 (nodeb) exchange 1.0 GB/s, and the fastest pair 35.0 GB/s", "rank 3 (nodeb) and rank 4"}},
		"P2P off":              {change(func(r []Facts) { r[0].Environment["NCCL_P2P_DISABLE"] = "1" }), "nccl-local", Slow, []string{"NCCL_P2P_DISABLE=1 on rank 0"}},
		"log: P2P off":         {parse("p2p_disabled.txt"), "nccl-local", Slow, []string{"through the host's memory (SHM), not directly (P2P)"}},
		"log: NVLink":          {parse("nvlink.txt"), "", Good, nil},
		"log: InfiniBand":      {parse("ib.txt"), "", Good, nil},
		"log: RoCE":            {parse("roce.txt"), "", Good, nil},
		"log: no GPUDirect":    {parse("ib_no_gdr.txt"), "nccl-rdma", Slow, []string{"0 of 4 connections between hosts use it"}},
		"log: sockets, no HCA": {parse("socket.txt"), "", Good, nil},
		"log: sockets, by a variable": {func(t *testing.T, r []Facts) {
			parse("socket_h200.txt")(t, r)
			r[0].Environment["NCCL_IB_DISABLE"] = "1"
		}, "nccl-network", Slow, []string{"NCCL uses TCP sockets between hosts; NCCL_IB_DISABLE=1 on rank 0"}},
		"log: sockets": {func(t *testing.T, r []Facts) {
			parse("socket.txt")(t, r)
			r[0].RDMAAdapters = []string{"mlx5_0"}
		}, "nccl-network", Slow, []string{"NCCL uses TCP sockets between hosts, and the hosts have the RDMA adapters mlx5_0; no variable asks for it"}},
	} {
		t.Run(name, func(t *testing.T) {
			ranks := goodRanks(3)
			c.change(t, ranks)
			r := Judge(ranks)
			var found []string
			for _, result := range r.Results {
				if len(result.Findings) > 0 && result.Check != c.check {
					t.Errorf("%s: %v", result.Check, result.Findings)
				}
				for _, f := range result.Findings {
					found = append(found, f.What)
					if f.Fix == "" {
						t.Errorf("%q has no fix", f.What)
					}
				}
			}
			if r.Verdict != c.level || len(found) != len(c.want) {
				t.Fatalf("%v, %q; want %v, %q", r.Verdict, found, c.level, c.want)
			}
			for i, want := range c.want {
				if !strings.Contains(found[i], want) {
					t.Errorf("got %q, want %q", found[i], want)
				}
			}
		})
	}
}

// One host whose connections with both neighbours are slow is named.
func TestSlowHostIsNamed(t *testing.T) {
	ranks := []Facts{{Rank: 0, Host: "a"}, {Rank: 1, Node: 1, Host: "b"}, {Rank: 2, Node: 2, Host: "c"}}
	ranks[0].Pairs = []Pair{{0, 1, 12e6}}
	ranks[1].Pairs = []Pair{{1, 2, 11e6}}
	ranks[2].Pairs = []Pair{{2, 0, 900e6}}
	_, findings := checkPairs(ranks)
	if len(findings) != 1 || !strings.HasPrefix(findings[0].What, "rank 1 (b) exchanges 12.0 MB/s with each of 2 ranks, and the fastest pair 900.0 MB/s") {
		t.Errorf("got %v", findings)
	}
}

// Two hosts are one pair, which is compared with what their interfaces are made for.
func TestSlowInterfaceIsNamed(t *testing.T) {
	for _, c := range []struct {
		speed, made float64 // of the pair, and of the slower interface
		isSlow      bool
	}{{12e6, 1.25e9, true}, {110e6, 1.25e9, false}, {90e6, 12.5e9, true}, {110e6, 12.5e9, false}, {11e6, 125e6, true}, {13e6, 125e6, false}, {1e6, 0, false}} {
		ranks := []Facts{{Rank: 0, Host: "a", Pairs: []Pair{{0, 1, c.speed}}}, {Rank: 1, Node: 1, Host: "b"}}
		for i := range ranks {
			ranks[i].Interfaces = []Interface{{Name: "eth0", IsUp: true, Addresses: []string{"10.0.0.1/24"}, Speed: c.made * float64(1+i)}, {Name: "docker0", IsUp: true, Addresses: []string{"172.17.0.1/16"}, Speed: 1}}
		}
		_, findings := checkPairs(ranks)
		if (len(findings) == 1) != c.isSlow || c.isSlow && !strings.HasPrefix(findings[0].What, "rank 0 (a) and rank 1 (b) exchange ") {
			t.Errorf("%v over a link of %v: %v", c.speed, c.made, findings)
		}
	}
}

// Every neighbour in the ring is measured once, and no rank is in two pairs at a time.
func TestPairings(t *testing.T) {
	for n := range 9 {
		members := make([]int, n)
		for i := range members {
			members[i] = 10 * i
		}
		seen := map[[2]int]bool{}
		for _, round := range pairings(members) {
			var busy []int
			for _, p := range round {
				if slices.Contains(busy, p[0]) || slices.Contains(busy, p[1]) {
					t.Errorf("%d members: %v", n, round)
				}
				busy = append(busy, p[0], p[1])
				seen[p] = true
			}
		}
		want := n
		if n < 3 {
			want = max(0, n-1)
		}
		if len(seen) != want {
			t.Errorf("%d members: %d pairs, want %d", n, len(seen), want)
		}
	}
}

func TestSelects(t *testing.T) {
	for value, want := range map[string]bool{"eth": true, "eth0": true, "=eth": false, "=eth0": true, "^eth": false, "^docker,lo": true, "ib,eth1": false, "ib,eth": true, "nope0": false} {
		if got := selects("NCCL_SOCKET_IFNAME", value, "eth0"); got != want {
			t.Errorf("NCCL_SOCKET_IFNAME=%s selects eth0: %v", value, got)
		}
	}
	if selects("GLOO_SOCKET_IFNAME", "eth", "eth0") || !selects("GLOO_SOCKET_IFNAME", "eth0", "eth0") {
		t.Error("Gloo's variable is a name, not a prefix")
	}
}

// Every check has a section in docs/doctor.md.
func TestPageHasEveryCheck(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if !strings.Contains(string(page), "\n## "+c.name+"\n") {
			t.Errorf("docs/doctor.md has no section %s", c.name)
		}
	}
}

func TestJSON(t *testing.T) {
	ranks := goodRanks(1)
	ranks[0].OpenFiles = 10
	text, err := json.Marshal(Judge(ranks))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"verdict":"broken"`, `"check":"open-files","level":"broken","findings":[{"level":"broken","what":"rank 0`, `"docs":"docs/doctor.md#open-files"`, `"level":"ok"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %s in %s", want, text)
		}
	}
}
