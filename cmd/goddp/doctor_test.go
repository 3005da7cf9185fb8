//go:build cgo && linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/doctor"
	"github.com/goddp/goddp/internal/fakegpu"
	"github.com/goddp/goddp/internal/netns"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/launcher"
)

// doctorReport is what "goddp doctor --json" prints.
type doctorReport struct {
	Verdict string   `json:"verdict"`
	Hosts   []string `json:"hosts"`
	Results []struct {
		Check, Good string
		Findings    []struct{ Level, What string }
	}
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

// examineHost runs a command that runs "goddp doctor --json" on this host. The doctor is $0 of a shell script.
func examineHost(t *testing.T, script string, env ...string) (code int, r doctorReport) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, os.Args[0])
	cmd.Env = append(workerEnv(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %q\n%s", err, &out, &errs)
	}
	return cmd.ProcessState.ExitCode(), r
}

// needsOpenBLAS skips a test of a host on which the doctor rightly finds that OpenBLAS is missing.
func needsOpenBLAS(t *testing.T) {
	t.Helper()
	for _, l := range doctor.Probe(doctor.Options{}).Libraries {
		if l.Name == "OpenBLAS" && l.Error != "" {
			t.Skip(l.Error)
		}
	}
}

func TestDoctorOfThisHost(t *testing.T) {
	needsOpenBLAS(t)
	code, r := examineHost(t, `exec "$0" doctor --json`)
	r.expect(t, "ok", "")
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A tiny /dev/shm, and one that is full, break a job on GPUs.
func TestDoctorFindsSmallSharedMemory(t *testing.T) {
	env := fakeGPUs(t, "cuda")
	for mount, want := range map[string]string{
		"mount -t tmpfs -o size=1m none /dev/shm":                                                   "/dev/shm has 1024 KiB free of 1024 KiB, want 32 MiB for 1 GPU",
		"mount -t tmpfs -o size=64m none /dev/shm && head -c 40m /dev/zero >/dev/shm/left-by-a-job": "/dev/shm has 24 MiB free of 64 MiB, want 32 MiB for 1 GPU",
	} {
		if out, err := exec.CommandContext(t.Context(), "unshare", "-rm", "sh", "-c", mount).CombinedOutput(); err != nil {
			t.Skipf("no mount namespace: %v: %s", err, out)
		}
		code, r := examineHost(t, `exec unshare -rm sh -c '`+mount+` && exec "$0" doctor --json' "$0"`, env...)
		r.expect(t, "broken", "shared-memory", want)
		if code != 2 {
			t.Errorf("exit code %d", code)
		}
	}
}

func TestDoctorFindsFewFiles(t *testing.T) {
	needsOpenBLAS(t)
	code, r := examineHost(t, `ulimit -n 300 && exec "$0" doctor --json`)
	r.expect(t, "broken", "open-files", "may open 300 files, want 1024")
	if code != 2 {
		t.Errorf("exit code %d", code)
	}
}

func TestDoctorFindsWrongInterface(t *testing.T) {
	needsOpenBLAS(t)
	_, r := examineHost(t, `exec "$0" doctor --json`, "NCCL_SOCKET_IFNAME=nope0")
	r.expect(t, "broken", "interfaces", `NCCL_SOCKET_IFNAME is "nope0", and the host has lo`)
}

func TestDoctorFindsUsedPort(t *testing.T) {
	needsOpenBLAS(t)
	listener, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	_, r := examineHost(t, `exec "$0" doctor --json`, "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port))
	r.expect(t, "broken", "port", fmt.Sprintf("%d: bind: address already in use", port))
}

// A rank that did not meet the others prints its report. The file of --output is rank 0's.
func TestDoctorOfLonelyRank(t *testing.T) {
	needsOpenBLAS(t)
	port, _ := testkit.Port(t) // where nothing listens
	file := t.TempDir() + "/report"
	code, r := examineHost(t, `exec "$0" doctor --json --timeout 500ms --output `+file, "RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2",
		"MASTER_ADDR=127.0.0.1", "MASTER_PORT="+strconv.Itoa(port))
	r.expect(t, "broken", "group", "rank 0, which hosts the job's store, has not come")
	if _, err := os.Stat(file); code != 2 || err == nil {
		t.Errorf("exit code %d; the file of rank 0: %v", code, err)
	}
}

// fakeGPUs builds the fake libraries and returns the variables by which a process opens them.
func fakeGPUs(t *testing.T, device string) (env []string) {
	t.Helper()
	for _, name := range fakegpu.Variables {
		t.Setenv(name, "") // restores the variables after the test
	}
	if err := fakegpu.Libraries(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	for _, name := range fakegpu.Variables {
		env = append(env, name+"="+os.Getenv(name))
	}
	return append(env, "GODDP_DEVICE="+device)
}

func TestDoctorFindsOldNCCL(t *testing.T) {
	env := fakeGPUs(t, "cuda")
	release, err := fakegpu.Control("version 21805")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	_, r := examineHost(t, `exec "$0" doctor --json`, env...)
	r.expect(t, "broken", "libraries", "NCCL is 2.18.5, want 2.19.1 or newer")
}

func TestDoctorFindsMissingGPU(t *testing.T) {
	_, r := examineHost(t, `exec "$0" doctor --json`, fakeGPUs(t, "cuda:99")...)
	r.expect(t, "broken", "gpus", "has no GPU: it wants GPU 99, counted from 0, and sees 16 GPUs")
}

func TestDoctorFindsMissingDriver(t *testing.T) {
	_, r := examineHost(t, `exec "$0" doctor --json`, "GODDP_DEVICE=cuda", "GODDP_OPENBLAS=", "GODDP_LIBCUDA=/nowhere/libcuda.so")
	r.expect(t, "broken", "libraries", "libcuda, which comes with NVIDIA's driver, was not found (GODDP_LIBCUDA can name it): /nowhere/libcuda.so")
}

// examineGPUs runs "goddp doctor --json" as two ranks on fake GPUs, with faults of the fake libraries. The doctor is $0 of a
// shell script. It returns whether the job succeeded, and rank 0's report.
func examineGPUs(t *testing.T, script, device string, faults ...string) (isGood bool, r doctorReport) {
	t.Helper()
	env := append(fakeGPUs(t, device), smallVar+"=1", "GODDP_NO_SMALL_ALLREDUCE=1")
	for gpu := range 16 { // without NVLink, because its speed is not that of the fake GPUs
		faults = append(faults, fmt.Sprintf("nvml_nvlinks %d 0", gpu))
	}
	release, err := fakegpu.Control(faults...)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	file := t.TempDir() + "/report"
	var out bytes.Buffer
	_, err = launcher.Run(t.Context(), &launcher.Config{
		Args: []string{"sh", "-c", script + ` "$0" doctor --json --timeout 30s --output ` + file, os.Args[0]}, Workers: 2, Stdout: &out, Stderr: &out,
		Env: append(workerEnv(), env...),
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

// Two ranks with host ids of their own may share a GPU, as NCCL lets them, and are measured to the end.
func TestDoctorOfTwoHostsOnOneGPU(t *testing.T) {
	_, r := examineGPUs(t, `NCCL_HOSTID=host$RANK exec`, "cuda:1")
	for check, want := range map[string]string{"group": "2 ranks met", "gpu-sharing": "no two ranks", "all-reduce": "64 MiB at ", "pairs": "1 pair of ranks on one host"} {
		if said := r.of(check); len(said) != 1 || !strings.HasPrefix(said[0], want) {
			t.Errorf("%s: %q, want %q", check, said, want)
		}
	}
}

// The report has the error of each rank that failed, on its GPU alone or in a call of NCCL.
func TestDoctorReportsErrorsOfAllRanks(t *testing.T) {
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

func TestDoctorFindsSharedGPU(t *testing.T) {
	var out bytes.Buffer
	result, err := launcher.Run(t.Context(), &launcher.Config{
		Args: []string{os.Args[0], "doctor"}, Workers: 2, Stdout: &out, Stderr: &out,
		Env: append(workerEnv(), fakeGPUs(t, "cuda:1")...),
	})
	if err == nil {
		t.Fatalf("the job succeeded: %+v\n%s", result, &out)
	}
	if want := "BROKEN  gpu-sharing    ranks 0 and 1 on"; !strings.Contains(out.String(), want) || !strings.Contains(out.String(), "the same GPU, 0000:01:00.0") {
		t.Errorf("no %q in\n%s", want, &out)
	}
}

// Of three hosts, the one with a slow interface is named. Of two, nothing shows what the speed should be: the interfaces are
// virtual.
func TestDoctorFindsSlowInterface(t *testing.T) {
	needsOpenBLAS(t)
	const slow = 1
	for hosts, want := range map[int]struct {
		code     int
		verdict  string
		findings []string
	}{2: {0, "ok", nil}, 3: {1, "slow", []string{"rank 1 (host1) exchanges"}}} {
		n := netns.New(t, hosts, 1)
		n.Hosts[slow].LimitRate(100_000_000)
		code, report := examineHosts(t, n)
		// On a busy machine the fast interfaces may be as slow as the limited one. Then the test measures again.
		for tries := 1; report.Verdict != want.verdict && want.verdict == "slow" && tries < 3; tries++ {
			code, report = examineHosts(t, n)
		}
		report.expect(t, want.verdict, "pairs", want.findings...)
		if code != want.code || len(report.Hosts) != hosts {
			t.Errorf("exit code %d, want %d; hosts %q", code, want.code, report.Hosts)
		}
	}
}

func TestDoctorFindsDifferentMTU(t *testing.T) {
	needsOpenBLAS(t)
	n := netns.New(t, 2, 1)
	code, r := examineHosts(t, n, nil, []string{"sh", "-c", `ip link set eth0 mtu 1400 && exec "$@"`, "sh"})
	r.expect(t, "slow", "mtu", "eth0 has the MTU 1500 on host0 and 1400 on host1")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// examineHosts runs "goddp doctor --json" as one rank on each host of a network, each after a prefix of its own. It returns
// rank 0's exit code and report.
func examineHosts(t *testing.T, n *netns.Network, prefixes ...[]string) (code int, r doctorReport) {
	t.Helper()
	hosts := len(n.Hosts)
	commands := make([]*exec.Cmd, hosts)
	outs := make([]bytes.Buffer, hosts)
	for r, host := range n.Hosts {
		args := []string{os.Args[0], "doctor", "--json"}
		if r < len(prefixes) {
			args = append(slices.Clone(prefixes[r]), args...)
		}
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Env = append(workerEnv(), "GODDP_INSECURE=1", "GODDP_JOB_ID=doctor", "WORLD_SIZE="+strconv.Itoa(hosts), "RANK="+strconv.Itoa(r),
			"LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_PORT=29500", "MASTER_ADDR="+n.Hosts[0].Addr(0).String())
		cmd.Stdout, cmd.Stderr = &outs[r], os.Stderr
		if err := host.Start(cmd); err != nil {
			t.Fatal(err)
		}
		commands[r] = cmd
	}
	for r, cmd := range commands {
		if err := cmd.Wait(); err != nil && r != 0 {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	if err := json.Unmarshal(outs[0].Bytes(), &r); err != nil {
		t.Fatalf("%v in %q", err, &outs[0])
	}
	return commands[0].ProcessState.ExitCode(), r
}
