package comm_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
)

// setEnv sets the environment variables that describe the world to vars, and unsets the others.
func setEnv(t *testing.T, vars map[string]string) {
	for _, name := range []string{"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
		"TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RESTART_COUNT"} {
		t.Setenv(name, "") // makes the test restore the variable at its end
		os.Unsetenv(name)
	}
	for name, value := range vars {
		os.Setenv(name, value)
	}
}

func TestWorldFromEnv(t *testing.T) {
	for _, c := range []struct {
		name string
		vars string
		want comm.World
		errs []string // parts of the error
	}{
		{name: "none set", want: comm.World{Size: 1, LocalSize: 1}},
		{
			name: "a launcher's worker",
			vars: "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=29500 TORCHELASTIC_USE_AGENT_STORE=True TORCHELASTIC_RESTART_COUNT=2",
			want: comm.World{Rank: 5, Size: 8, LocalRank: 1, LocalSize: 4, MasterAddr: "h", MasterPort: 29500, AgentStore: true, Generation: 2},
		},
		{
			name: "the least",
			vars: "RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=1234",
			want: comm.World{Rank: 1, Size: 2, LocalRank: 1, LocalSize: 2, MasterAddr: "127.0.0.1", MasterPort: 1234},
		},
		{name: "half", vars: "RANK=0", errs: []string{"a job: WORLD_SIZE is not set: start the program with golaunch or torchrun, or set RANK, "}},
		{name: "the other half", vars: "WORLD_SIZE=1", errs: []string{"a job: RANK is not set: start"}},
		{name: "no master", vars: "RANK=0 WORLD_SIZE=2", errs: []string{"a job: MASTER_ADDR is not set; MASTER_PORT is not set: start"}},
		{name: "no numbers", vars: "RANK=x WORLD_SIZE=0 MASTER_ADDR=h MASTER_PORT=1", errs: []string{`RANK="x": want a number of at least 0`, `WORLD_SIZE="0": want a number of at least 1`}},
		{name: "beyond the world", vars: "RANK=2 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1 LOCAL_RANK=0", errs: []string{"RANK 2 with WORLD_SIZE 2: want 0 <= RANK < WORLD_SIZE"}},
		{name: "larger than any", vars: "RANK=0 WORLD_SIZE=2000000000 MASTER_ADDR=h MASTER_PORT=1", errs: []string{"WORLD_SIZE 2000000000: want at most 65536"}},
		{name: "no port", vars: "RANK=0 WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=65536", errs: []string{"MASTER_PORT 65536: want at most 65535"}},
		{name: "beyond the host", vars: "RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=h MASTER_PORT=1", errs: []string{"LOCAL_RANK 2 with LOCAL_WORLD_SIZE 2: want 0 <= LOCAL_RANK < LOCAL_WORLD_SIZE"}},
		{name: "a host larger than the world", vars: "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=4 MASTER_ADDR=h MASTER_PORT=1", errs: []string{"LOCAL_WORLD_SIZE 4: want at most WORLD_SIZE 2"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			vars := map[string]string{}
			for _, kv := range strings.Fields(c.vars) {
				k, v, _ := strings.Cut(kv, "=")
				vars[k] = v
			}
			setEnv(t, vars)
			got, err := comm.WorldFromEnv()
			if len(c.errs) == 0 && err != nil {
				t.Fatal(err)
			}
			for _, want := range c.errs {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// A program that srun or mpirun starts without golaunch trains alone in each task, and says so.
func TestATaskThatTrainsAloneSaysSo(t *testing.T) {
	t.Setenv("GODDP_DEVICE", "cpu")
	for vars, want := range map[string]string{
		"SLURM_STEP_NUM_TASKS=4":                                "one of 4 tasks (SLURM_STEP_NUM_TASKS)",
		"OMPI_COMM_WORLD_SIZE=2":                                "one of 2 tasks (OMPI_COMM_WORLD_SIZE)",
		"SLURM_STEP_NUM_TASKS=1":                                "",
		"SLURM_STEP_NUM_TASKS=4 RANK=0 WORLD_SIZE=1 PMI_SIZE=4": "",
	} {
		t.Run(vars, func(t *testing.T) {
			setEnv(t, nil)
			for _, kv := range strings.Fields(vars) {
				k, v, _ := strings.Cut(kv, "=")
				t.Setenv(k, v)
			}
			var log bytes.Buffer
			pg, err := comm.Init(t.Context(), &comm.Options{Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))})
			if err != nil {
				t.Fatal(err)
			}
			defer pg.Close()
			if !strings.Contains(log.String(), want) || want == "" && strings.Contains(log.String(), "trains alone") {
				t.Errorf("it logged %q, want %q", &log, want)
			}
		})
	}
}

// The file with the secret may vanish between two calls of Init.
func TestInitRemembersTheSecret(t *testing.T) {
	t.Setenv("GODDP_DEVICE", "cpu")
	setEnv(t, nil)
	file := filepath.Join(t.TempDir(), "secret")
	t.Setenv("GODDP_TOKEN_FILE", file)
	for _, change := range []func() error{
		func() error { return os.WriteFile(file, []byte("sixteen letters!"), 0o600) },
		func() error { return os.Remove(file) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		pg, err := comm.Init(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := pg.Close(); err != nil {
			t.Error(err)
		}
	}
}
