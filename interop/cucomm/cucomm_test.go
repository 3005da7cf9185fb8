package cucomm_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"gorgonia.org/cu"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/store"
)

// ranks is the number of GPUs that the test needs.
const ranks = 2

// TestMain runs the tests or, in a process that the test has started, one rank.
func TestMain(m *testing.M) {
	if os.Getenv("RANK") != "" {
		comm.Main(program)
	}
	os.Exit(m.Run())
}

// TestProgram runs a cu program on two GPUs. The program checks its own results.
func TestProgram(t *testing.T) {
	if gpus, err := cu.NumDevices(); err != nil || gpus < ranks {
		t.Skipf("%d GPUs are needed, and here are %d (%v)", ranks, gpus, err)
	}
	server, err := store.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var wg sync.WaitGroup
	for r := range ranks {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.WaitDelay = 5 * time.Second
		cmd.Env = append(os.Environ(),
			fmt.Sprint("RANK=", r), fmt.Sprint("LOCAL_RANK=", r), fmt.Sprint("WORLD_SIZE=", ranks), fmt.Sprint("LOCAL_WORLD_SIZE=", ranks),
			"MASTER_ADDR="+host, "MASTER_PORT="+port, "TORCHELASTIC_USE_AGENT_STORE=True")
		wg.Go(func() {
			out, err := cmd.CombinedOutput()
			t.Logf("rank %d:\n%s", r, out)
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
			for _, check := range []string{"sum: ok", "stream order: ok", "without the stream's order: wrong", "foreign memory: refused", "foreign stream: refused"} {
				if !strings.Contains(string(out), check) {
					t.Errorf("rank %d does not say %q", r, check)
				}
			}
		})
	}
	wg.Wait()
}
