//go:build unix

package host_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/backend/backendtest"
	"github.com/goddp/goddp/internal/backend/host"
	"github.com/goddp/goddp/internal/coordinator/coordinatortest"
	"github.com/goddp/goddp/store"
)

// TestMain is also the main function of the worker processes that tests start.
func TestMain(m *testing.M) {
	if spec := os.Getenv("HOST_TEST_WORKER"); spec != "" {
		worker(strings.Fields(spec))
		return
	}
	goleak.VerifyTestMain(m)
}

// worker runs rank args[0] of args[1] ranks, which meet in the store at the address args[2]. args[3]
// says how the ranks are placed on hosts: "tcp" places one rank on each host, "mixed" places two ranks
// on each host, and any other word places all ranks on one host. The worker makes args[5] all-reduces of args[4] elements, and prints how the last one ended.
// args[6] is the timeout of each.
func worker(args []string) {
	rank, _ := strconv.Atoi(args[0])
	size, _ := strconv.Atoi(args[1])
	count, _ := strconv.Atoi(args[4])
	rounds, _ := strconv.Atoi(args[5])
	timeout, _ := time.ParseDuration(args[6])
	fmt.Println("ended:", backendtest.Describe(func() error {
		ctx := context.Background()
		kv, err := store.Dial(ctx, args[2], nil)
		if err != nil {
			return err
		}
		defer kv.Close()
		control, release, err := coordinatortest.OfProcess(ctx, kv, rank, size)
		defer release()
		if err != nil {
			return err
		}
		o := &host.Options{}
		switch args[3] {
		case "tcp":
			o.HostID = args[0]
		case "mixed":
			o.HostID = fmt.Sprint(rank / 2)
		}
		g, err := host.New(ctx, backend.Config{Rank: rank, Size: size, Control: control, Timeout: soon}, o)
		if err != nil {
			return err
		}
		defer g.Close(ctx)
		return backendtest.ReduceRounds(newRank(g, control), count, rounds, timeout)
	}()))
}

// startWorkers starts n workers, whose calls have a timeout, and waits until all of them work.
func startWorkers(t *testing.T, n int, transport string, count, rounds int, timeout time.Duration) *backendtest.Workers {
	t.Helper()
	server, err := store.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	w := backendtest.StartWorkers(t, n, func(rank int) []string {
		return append(os.Environ(), fmt.Sprintf("HOST_TEST_WORKER=%d %d %s %s %d %d %v", rank, n, server.Addr(), transport, count, rounds, timeout))
	})
	w.WaitForRounds(t)
	return w
}

const forever = 1 << 30

// One rank is killed while it works. All others name it. With few elements the others are often
// between two calls and fail at the next Start; the test runs many times so that a wrong rank would
// be named.
func TestKilledRankIsNamed(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "mixed"} {
		for count, times := range map[int]int{10: 20, 1 << 20: 1} {
			t.Run(fmt.Sprintf("%s/%d", transport, count), func(t *testing.T) {
				for range times {
					w := startWorkers(t, 4, transport, count, forever, soon)
					at := time.Now()
					w.Cmds[2].Process.Kill()
					for _, r := range []int{0, 1, 3} {
						if how := w.Wait(t, r, "ended: "); how != "lost 2 false" {
							t.Errorf("rank %d ended: %s", r, how)
						}
					}
					t.Logf("noticed by all after %v", time.Since(at))
				}
			})
		}
	}
}

// A stopped rank is not dead, so the other ranks time out.
func TestStoppedRankTimesOut(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			t.Parallel()
			w := startWorkers(t, 3, transport, 1<<16, forever, 3*time.Second)
			w.Cmds[1].Process.Signal(syscall.SIGSTOP)
			for _, r := range []int{0, 2} {
				if how := w.Wait(t, r, "ended: "); !strings.HasPrefix(how, "timeout") {
					t.Errorf("rank %d ended: %s", r, how)
				}
			}
		})
	}
}

// All ranks close as soon as they are done.
func TestRanksCloseInGoodOrder(t *testing.T) {
	for _, transport := range []string{"shm", "tcp", "mixed"} {
		t.Run(transport, func(t *testing.T) {
			w := startWorkers(t, 4, transport, 10_000, 500, soon)
			for r := range w.Cmds {
				if how := w.Wait(t, r, "ended: "); how != "done" {
					t.Errorf("rank %d ended: %s", r, how)
				}
			}
		})
	}
}
