package jobenv

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// lookup returns a Lookup of a list of NAME=value, of which the last counts.
func lookup(env ...string) Lookup {
	return func(name string) (string, bool) {
		for _, kv := range slices.Backward(env) {
			if value, ok := strings.CutPrefix(kv, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

// The first of a variable's names counts, unless it is empty.
func TestSettings(t *testing.T) {
	for _, test := range []struct {
		env  string
		want func(s *Settings) // changes the defaults
	}{
		{"", func(s *Settings) {}},
		{"GODDP_ASYNC_ERROR_HANDLING=2 TORCH_NCCL_ASYNC_ERROR_HANDLING=0", func(s *Settings) { s.Failures.CleanUpOnly = true }},
		{"NCCL_ASYNC_ERROR_HANDLING=0", func(s *Settings) { s.Failures.NoHandling = true }},
		{"TORCH_NCCL_BLOCKING_WAIT=Yes TORCH_NCCL_ASYNC_ERROR_HANDLING=0", func(s *Settings) { s.Failures.BlockingWait = true }},
		{"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=5 NCCL_ENABLE_MONITORING=f", func(s *Settings) { s.Failures.Heartbeat, s.Failures.Monitoring = 5*time.Second, false }},
		{"GODDP_DEBUG= TORCH_DISTRIBUTED_DEBUG=info", func(s *Settings) { s.Failures.ReportStragglers = true }},
		{"GODDP_DEBUG=DETAIL TORCH_DISTRIBUTED_DEBUG=INFO", func(s *Settings) { s.Failures.ReportStragglers, s.Failures.CheckCalls = true, true }},
		{"GODDP_FLIGHT_ENTRIES=10 TORCH_FR_BUFFER_SIZE=20", func(s *Settings) { s.Flight.Entries = 10 }},
		{"TORCH_FR_BUFFER_SIZE=20 TORCH_NCCL_TRACE_BUFFER_SIZE=30", func(s *Settings) { s.Flight.Entries = 20 }},
		{"TORCH_NCCL_TRACE_BUFFER_SIZE=0 TORCH_NCCL_DUMP_ON_TIMEOUT=0", func(s *Settings) { s.Flight.Entries, s.Flight.DumpOnFailure = 0, false }},
		{"GODDP_DUMP_ON_FAILURE=1 TORCH_NCCL_DUMP_ON_TIMEOUT=0", func(s *Settings) {}},
		{"GODDP_FLIGHT_DIR=/a TORCH_FR_DUMP_TEMP_FILE=/b/rank_", func(s *Settings) { s.Flight.Dir = "/a" }},
		{"TORCH_FR_DUMP_TEMP_FILE=/b/trace_rank_", func(s *Settings) { s.Flight.Dir = "/b/trace_rank" }},
		{"TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/b/", func(s *Settings) { s.Flight.Dir = "/b" }},
		{"GODDP_TOKEN_FILE=/t GODDP_UNPROTECTED_DATA=TRUE", func(s *Settings) { s.Security.TokenFile, s.Security.Unprotected = "/t", true }},
		{"GODDP_DEVICE=cpu", func(s *Settings) { s.Device.Kind = "cpu" }},
		{"GODDP_DEVICE=cuda:3 GODDP_ALLOW_TF32=y", func(s *Settings) { s.Device.Kind, s.Device.GPU, s.Device.AllowTF32 = "cuda", 3, true }},
	} {
		want := Settings{
			Failures: Failures{Heartbeat: DefaultHeartbeat, Monitoring: true},
			Flight:   Flight{Entries: DefaultEntries, DumpOnFailure: true},
			Device:   Device{GPU: -1},
		}
		test.want(&want)
		if got, err := ReadSettings(lookup(strings.Fields(test.env)...)); err != nil || got != want {
			t.Errorf("%s:\n%+v, %v, want\n%+v", test.env, got, err, want)
		}
	}
}

// One error names all variables with bad values, and says what they may be.
func TestBadSettings(t *testing.T) {
	for env, want := range map[string]string{
		"GODDP_INSECURE=maybe":                                `GODDP_INSECURE="maybe": want 0 or 1`,
		"TORCH_FR_BUFFER_SIZE=-1 GODDP_DUMP_ON_FAILURE=often": `TORCH_FR_BUFFER_SIZE="-1": want a number from 0 to 16777216; GODDP_DUMP_ON_FAILURE="often": want 0 or 1`,
		"NCCL_ASYNC_ERROR_HANDLING=4":                         `NCCL_ASYNC_ERROR_HANDLING="4": want 0, 1, 2 or 3`,
		"GODDP_BLOCKING_WAIT=1 GODDP_ASYNC_ERROR_HANDLING=1":  "blocking wait and asynchronous error handling are both on, want one of them: set GODDP_ASYNC_ERROR_HANDLING=0, or turn blocking wait off",
		"TORCH_DISTRIBUTED_DEBUG=ALL":                         `TORCH_DISTRIBUTED_DEBUG="ALL": want OFF, INFO or DETAIL`,
		"GODDP_DEVICE=cuda:":                                  `GODDP_DEVICE="cuda:": want cpu, cuda, or cuda:N with a GPU's number N`,
		"GODDP_DEVICE=cpu:0":                                  `GODDP_DEVICE="cpu:0": want cpu, cuda, or cuda:N with a GPU's number N`,
	} {
		if _, err := ReadSettings(lookup(strings.Fields(env)...)); err == nil || err.Error() != want {
			t.Errorf("%s: error %v, want %s", env, err, want)
		}
	}
}

// What golaunch chooses for programs that compute no share of their own does not limit goddp's ranks.
func TestRanksShareTheCores(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(12))
	for _, test := range []struct {
		env     []string
		workers int
		want    int
	}{
		{nil, 1, 12},
		{nil, 4, 3},
		{nil, 100, 1},
		{Chosen(ThreadsVar, "1"), 4, 3},
		{append(Chosen(ThreadsVar, "1"), "OMP_NUM_THREADS=5"), 4, 5}, // a script that starts the program chose it
		{[]string{"OMP_NUM_THREADS=1"}, 4, 1},
	} {
		if got, err := Threads(lookup(test.env...), test.workers); err != nil || got != test.want {
			t.Errorf("%d workers with %q: %d threads, %v, want %d", test.workers, test.env, got, err, test.want)
		}
	}
	if _, err := Threads(lookup("OMP_NUM_THREADS=0"), 1); err == nil || err.Error() != `OMP_NUM_THREADS="0": want a number of at least 1` {
		t.Errorf("0 threads: %v", err)
	}
}

// A worker reads what golaunch writes: but its store is the one that the agent forwards to, and orders are not of the job.
func TestWorkersReadTheirJob(t *testing.T) {
	written := Job{
		Rank: 5, WorldSize: 8, LocalRank: 1, LocalWorldSize: 4, Node: 1, Nodes: 2, Role: "default", MasterAddr: "host", MasterPort: 29500,
		Restarts: 2, MaxRestarts: 3, ShutdownTimeout: 1500 * time.Millisecond, ErrorFile: "/error", StopFile: "/stop", ID: "id", RunID: "run",
		Agent: Agent{"127.0.0.1:1234", "127.0.0.1:1235", "10.0.0.2", true, 9, true},
	}
	want := Job{
		Rank: 5, WorldSize: 8, LocalRank: 1, LocalWorldSize: 4, MasterAddr: "127.0.0.1", MasterPort: 1234, AgentStore: true,
		Restarts: 2, ID: "id", RunID: "run", Agent: written.Agent,
	}
	env := written.Environ()
	if got, err := ReadJob(lookup(env...)); err != nil || got != want {
		t.Errorf("read %+v, %v, want\n%+v", got, err, want)
	}
	// torchrun, which a worker started, passes on golaunch's variables, which are another job's.
	want.MasterAddr, want.MasterPort, want.AgentStore, want.Agent = "other", 29500, false, Agent{}
	if got, err := ReadJob(lookup(append(env, "MASTER_ADDR=other")...)); err != nil || got != want {
		t.Errorf("under another launcher: %+v, %v, want\n%+v", got, err, want)
	}
	if value, _ := lookup(env...)(ShutdownTimeoutVar); value != "1.5" {
		t.Errorf("%s=%s, want 1.5", ShutdownTimeoutVar, value)
	}
}
