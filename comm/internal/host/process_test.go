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

	"github.com/goddp/goddp/comm/internal/host"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/backendtest"
	"github.com/goddp/goddp/internal/testkit/coordinatortest"
)

func TestMain(m *testing.M) { testkit.Main(m, map[string]func(){"worker": worker}) }

// worker runs a rank of a group. Its arguments are the rank, the number of ranks, the address of the store in which they
// meet, how they are placed on hosts ("tcp" places one rank on each host, "mixed" two ranks on each host, and any
// other word all ranks on one host), the number of elements and of all-reduces, and the timeout of each. The worker
// prints how the last all-reduce ended.
func worker() {
	args := os.Args[1:]
	rank, _ := strconv.Atoi(args[0])
	size, _ := strconv.Atoi(args[1])
	count, _ := strconv.Atoi(args[4])
	rounds, _ := strconv.Atoi(args[5])
	timeout, _ := time.ParseDuration(args[6])
	ctx := context.Background()
	err := func() error {
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
		fmt.Println("ended:", backendtest.Describe(backendtest.ReduceRounds(newRank(g, control), count, rounds, timeout)))
		return nil
	}()
	if err != nil {
		fmt.Println("ended:", err)
	}
}

// startWorkers starts n workers, whose calls have a timeout, and waits until all of them work.
func startWorkers(t *testing.T, n int, transport string, count, rounds int, timeout time.Duration) (ranks []*testkit.Process) {
	t.Helper()
	server, err := store.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	for r := range n {
		ranks = append(ranks, testkit.Start(t, testkit.Self(t, "worker", fmt.Sprint(r), fmt.Sprint(n), server.Addr(), transport,
			fmt.Sprint(count), fmt.Sprint(rounds), timeout.String())))
	}
	for _, p := range ranks {
		p.Await("^round$", 1)
	}
	return ranks
}

// wantEnd checks how the last all-reduce of a worker ended.
func wantEnd(t *testing.T, p *testkit.Process, want string) {
	t.Helper()
	if got := p.Await("^ended: ", 1).Text; !strings.HasPrefix(got, "ended: "+want) {
		t.Errorf("%q, want that it ended: %s", got, want)
	}
}

const forever = 1 << 30

// One rank is killed while it works. All others name it. With few elements the others are often
// between two calls and fail at the next Start; with -long the test runs many times so that a wrong rank would
// be named.
func TestKilledRankIsNamed(t *testing.T) {
	kill := func(transport string, count int) {
		ranks := startWorkers(t, 4, transport, count, forever, soon)
		ranks[2].Signal(syscall.SIGKILL)
		for _, r := range []int{0, 1, 3} {
			wantEnd(t, ranks[r], "lost 2 false")
		}
	}
	kill("shm", 10)
	if !testkit.IsLong() {
		return
	}
	for _, transport := range []string{"shm", "tcp", "mixed"} {
		kill(transport, 1<<20)
		for range 5 {
			kill(transport, 10)
		}
	}
}

// A stopped rank is not dead, so the other ranks time out.
func TestStoppedRankTimesOut(t *testing.T) {
	testkit.Long(t)
	for _, transport := range []string{"shm", "tcp"} {
		ranks := startWorkers(t, 3, transport, 1<<16, forever, time.Second)
		ranks[1].Signal(syscall.SIGSTOP)
		wantEnd(t, ranks[0], "timeout")
		wantEnd(t, ranks[2], "timeout")
	}
}

// All ranks close as soon as they are done.
func TestRanksCloseInGoodOrder(t *testing.T) {
	testkit.Long(t)
	for _, transport := range []string{"shm", "tcp", "mixed"} {
		for _, p := range startWorkers(t, 4, transport, 10_000, 500, soon) {
			wantEnd(t, p, "done")
		}
	}
}
