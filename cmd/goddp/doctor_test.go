//go:build cgo && linux

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/fakegpu"
	"github.com/goddp/goddp/internal/testkit/netns"
	"github.com/goddp/goddp/launcher"
)

// doctorReport is what "goddp doctor --json" prints.
type doctorReport struct {
	Verdict string   `json:"verdict"`
	Hosts   []string `json:"hosts"`
	Results []struct {
		Check, Good string
		Findings    []finding
	}
}

type finding struct{ Level, What string }

// readReport reads the report of a doctor that ended with an exit code. It leaves out that the host has no OpenBLAS or no oneDNN.
func readReport(t *testing.T, code int, text string) (r doctorReport) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	levels := []string{"ok", "slow", "broken"}
	if want := slices.Index(levels, r.Verdict); code != want {
		t.Errorf("exit code %d, want %d: the verdict is %q", code, want, r.Verdict)
	}
	r.Verdict = "ok"
	for i := range r.Results {
		result := &r.Results[i]
		result.Findings = slices.DeleteFunc(result.Findings, func(f finding) bool {
			return strings.Contains(f.What, "OpenBLAS") || strings.Contains(f.What, "oneDNN")
		})
		for _, f := range result.Findings {
			r.Verdict = levels[max(slices.Index(levels, r.Verdict), slices.Index(levels, f.Level))]
		}
	}
	return r
}

// expect fails the test if the report does not have findings of one check alone, with the parts.
func (r doctorReport) expect(t *testing.T, verdict, check string, parts ...string) {
	t.Helper()
	if r.Verdict != verdict {
		t.Errorf("the verdict is %q, want %q: %+v", r.Verdict, verdict, r)
	}
	for _, result := range r.Results {
		for i, f := range result.Findings {
			if result.Check != check || i >= len(parts) || !strings.Contains(f.What, parts[i]) {
				t.Errorf("%s: %s; want %s: %q", result.Check, f.What, check, parts)
			}
		}
		if result.Check == check && len(result.Findings) != len(parts) {
			t.Errorf("%s has %d findings, want %d", check, len(result.Findings), len(parts))
		}
	}
}

// examineHost runs "goddp doctor --json" on this host, by a shell script in which "$0" is goddp.
func examineHost(t *testing.T, script string, env ...string) doctorReport {
	t.Helper()
	goddp := process(t)
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, goddp.Path)
	cmd.Env = append(goddp.Env, env...)
	r := testkit.Run(t, cmd)
	return readReport(t, r.Code, r.Stdout)
}

func TestDoctorOfThisHost(t *testing.T) {
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	const doctor = `exec "$0" doctor --json`
	for _, c := range []struct {
		script         string
		env            []string
		verdict, check string
		findings       []string
	}{
		{doctor, nil, "ok", "", nil},
		{`ulimit -n 300 && ` + doctor, nil, "broken", "open-files", []string{"may open 300 files, want 1024"}},
		{doctor, []string{"NCCL_SOCKET_IFNAME=nope0"}, "broken", "interfaces", []string{`NCCL_SOCKET_IFNAME is "nope0", and the host has lo`}},
		{doctor, []string{"RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + port}, "broken", "port", []string{port + ": bind: address already in use"}},
		{doctor, []string{"GODDP_DEVICE=cuda", "GODDP_LIBCUDA=/nowhere/libcuda.so"}, "broken", "libraries",
			[]string{"libcuda, which comes with NVIDIA's driver, was not found (GODDP_LIBCUDA can name it): /nowhere/libcuda.so"}},
	} {
		examineHost(t, c.script, c.env...).expect(t, c.verdict, c.check, c.findings...)
	}
}

// A rank that did not meet the others prints its report. The file of --output is rank 0's.
func TestDoctorOfLonelyRank(t *testing.T) {
	testkit.Long(t)
	port, _ := testkit.Port(t) // where nothing listens
	file := t.TempDir() + "/report"
	r := examineHost(t, `exec "$0" doctor --json --timeout 500ms --output `+file, "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port))
	r.expect(t, "broken", "group", "rank 0, which hosts the job's store, has not started")
	if _, err := os.Stat(file); err == nil {
		t.Error("it wrote the file of rank 0")
	}
}

// An old NCCL, a missing GPU, a tiny /dev/shm, and one that is full, break a job on GPUs.
func TestEmulatedDoctorOfAHostWithGPUs(t *testing.T) {
	const doctor, shared = `exec "$0" doctor --json`, `exec unshare -rm sh -c 'mount -t tmpfs -o size=%s none /dev/shm && %s exec "$0" doctor --json' "$0"`
	for _, c := range []struct{ script, device, fault, check, finding string }{
		{doctor, "cuda", "version 21805", "libraries", "NCCL is 2.18.5, want 2.19.1 or newer"},
		{doctor, "cuda:99", "", "gpus", "has no GPU: it wants GPU 99, counted from 0, but sees 16 GPUs"},
		{fmt.Sprintf(shared, "1m", ""), "cuda", "", "shared-memory", "/dev/shm has 1024 KiB free of 1024 KiB, want 32 MiB for 1 GPU"},
		{fmt.Sprintf(shared, "64m", "head -c 40m /dev/zero >/dev/shm/left-by-a-job &&"), "cuda", "", "shared-memory", "/dev/shm has 24 MiB free of 64 MiB, want 32 MiB for 1 GPU"},
	} {
		t.Run(c.finding, func(t *testing.T) {
			if strings.Contains(c.script, "unshare") {
				testkit.Need(t, mountNamespace)
			}
			fakegpu.Use(t, c.fault)
			examineHost(t, c.script, "GODDP_DEVICE="+c.device, smallVar+"=1").expect(t, "broken", c.check, c.finding)
		})
	}
}

var mountNamespace = testkit.Requires("a mount namespace", func() error {
	return exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "none", "/dev/shm").Run()
})

// examineGPUs runs "goddp doctor --json" as two ranks on fake GPUs, with faults of the fake libraries. The doctor is $0 of a
// shell script. It returns whether the job succeeded, and rank 0's report.
func examineGPUs(t *testing.T, script, device string, faults ...string) (isGood bool, r doctorReport) {
	t.Helper()
	for gpu := range 16 { // without NVLink, because its speed is not that of the fake GPUs
		faults = append(faults, fmt.Sprintf("nvml_nvlinks %d 0", gpu))
	}
	fakegpu.Use(t, faults...)
	goddp, file := process(t), t.TempDir()+"/report"
	var out bytes.Buffer
	_, err := launcher.Run(t.Context(), &launcher.Config{
		Args: []string{"sh", "-c", script + ` "$0" doctor --json --timeout 30s --output ` + file, goddp.Path}, Workers: 2, Stdout: &out, Stderr: &out,
		Env: append(goddp.Env, "GODDP_DEVICE="+device, smallVar+"=1", "GODDP_NO_SMALL_ALLREDUCE=1"),
	})
	text, fileErr := os.ReadFile(file)
	if fileErr == nil {
		fileErr = json.Unmarshal(text, &r)
	}
	if fileErr != nil {
		t.Fatalf("%v; the job: %v\n%s", fileErr, err, &out)
	}
	return err == nil, r
}

// of returns what the report says of a check: what is good, or the findings.
func (r doctorReport) of(check string) (said []string) {
	for _, result := range r.Results {
		if result.Check != check {
			continue
		}
		if result.Good != "" {
			said = append(said, result.Good)
		}
		for _, f := range result.Findings {
			said = append(said, f.Level+": "+f.What)
		}
	}
	return said
}

// Two ranks do not share a GPU, unless they have host ids of their own, as NCCL lets them. Then they are measured to the end.
func TestEmulatedDoctorOfOneGPU(t *testing.T) {
	isGood, r := examineGPUs(t, `exec`, "cuda:1")
	if said := r.of("gpu-sharing"); isGood || len(said) != 1 || !strings.HasPrefix(said[0], "broken: ranks 0 and 1 on") || !strings.Contains(said[0], "the same GPU, 0000:01:00.0") {
		t.Errorf("the job succeeded: %v; %q", isGood, said)
	}
	_, r = examineGPUs(t, `NCCL_HOSTID=host$RANK exec`, "cuda:1")
	for check, want := range map[string]string{"group": "2 ranks met", "gpu-sharing": "no two ranks", "all-reduce": "64 MiB at ", "pairs": "1 pair of ranks on one host"} {
		if said := r.of(check); len(said) != 1 || !strings.HasPrefix(said[0], want) {
			t.Errorf("%s: %q, want %q", check, said, want)
		}
	}
}

// The report has the error of each rank that failed, on its GPU alone or in a call of NCCL.
func TestEmulatedDoctorReportsErrorsOfAllRanks(t *testing.T) {
	full := t.TempDir() + "/control"
	if err := os.WriteFile(full, []byte("memory 1000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	port, _ := testkit.Port(t)
	refused := []string{"rank 1: AllGather #1(int64, 2 elements): process group aborted", "rank 1: AllGather #1(int64, 2 elements): ncclGroup of 2: internal error (3)"}
	for name, c := range map[string]struct {
		script, fault string
		ranks         []int
		errors        []string
	}{
		"GPU":                   {`test $RANK = 0 || export FAKEGPU_CONTROL=` + full + `; exec`, "", []int{1}, []string{"out of device memory"}},
		"NCCL":                  {`exec`, "refuse 1 1", []int{0, 1}, refused},
		"NCCL without golaunch": {fmt.Sprintf(`unset TORCHELASTIC_USE_AGENT_STORE; MASTER_PORT=%d exec`, port), "refuse 1 1", []int{0, 1}, refused},
	} {
		t.Run(name, func(t *testing.T) {
			isGood, r := examineGPUs(t, c.script, "cuda", c.fault)
			said := r.of("group")
			if isGood || len(said) != len(c.ranks) {
				t.Fatalf("the job succeeded: %v; %q, want errors of ranks %v", isGood, said, c.ranks)
			}
			for i, rank := range c.ranks {
				if !strings.HasPrefix(said[i], fmt.Sprintf("broken: rank %d on ", rank)) || !strings.Contains(said[i], c.errors[i]) {
					t.Errorf("got %q, want %q of rank %d", said[i], c.errors[i], rank)
				}
			}
		})
	}
}

// Of three hosts, the one with a slow interface is named.
func TestDoctorFindsSlowInterface(t *testing.T) {
	testkit.Long(t)
	n := netns.New(t, 3, 1)
	n.Hosts[1].LimitRate(100_000_000)
	report := examineHosts(t, n)
	// On a busy machine the fast interfaces may be as slow as the limited one. Then the test measures again.
	for tries := 1; report.Verdict != "slow" && tries < 3; tries++ {
		report = examineHosts(t, n)
	}
	report.expect(t, "slow", "pairs", "rank 1 (host1) exchanges")
	if len(report.Hosts) != 3 {
		t.Errorf("hosts %q, want 3", report.Hosts)
	}
}

// examineHosts runs "goddp doctor --json" as one rank on each host of a network, and returns rank 0's report.
func examineHosts(t *testing.T, n *netns.Network) doctorReport {
	t.Helper()
	var ranks []*testkit.Process
	for r, host := range n.Hosts {
		cmd := process(t, "doctor", "--json")
		cmd.Env = append(cmd.Env, "GODDP_INSECURE=1", "GODDP_JOB_ID=doctor", "WORLD_SIZE="+strconv.Itoa(len(n.Hosts)), "RANK="+strconv.Itoa(r),
			"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_PORT=29500", "MASTER_ADDR="+n.Hosts[0].Addr(0).String())
		ranks = append(ranks, testkit.StartBy(t, cmd, func() error { return host.Start(cmd) }))
	}
	for r, p := range ranks {
		if code := p.Wait(); code != 0 && r != 0 {
			t.Errorf("rank %d: exit code %d", r, code)
		}
	}
	return readReport(t, ranks[0].Wait(), ranks[0].Stdout())
}
