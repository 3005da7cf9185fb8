package commtest

import (
	"fmt"
	"os"
	"testing"

	"github.com/goddp/goddp/comm"
)

// In a job the ranks communicate by shared memory or, if TestMain separates the hosts, by TCP.
func TestOperands(t *testing.T) {
	for _, n := range Sizes(t, 2, 3) {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			Operands(t, n, func(t testing.TB, opts *comm.Options, f func(pg *comm.ProcessGroup) error) { OnRanks(t, n, opts, f) })
		})
	}
}

// hostsVar is an environment variable that gives every process of a job a host name of its own.
const hostsVar = "GODDP_TEST_HOSTS"

func TestOnProcessesOverTCP(t *testing.T) { Processes(t, 2, "GODDP_DEVICE=cpu", hostsVar+"=1") }

func TestGPUOnProcesses(t *testing.T) { ProcessesOnGPUs(t, 2) }

// separateHosts names this process's host after its rank if hostsVar is set.
func separateHosts() {
	if os.Getenv(hostsVar) != "" {
		os.Setenv("GODDP_HOST_ID", "host of rank "+os.Getenv("RANK"))
	}
}
