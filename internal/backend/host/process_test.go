//go:build unix

package host_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

// worker is rank args[0] of args[1] at the store args[2]. If args[3] is "tcp", each rank is on a
// host of its own. The worker reduces args[4] elements args[5] times, prints "round" from time to
// time, and prints how it ended.
func worker(args []string) {
	rank, _ := strconv.Atoi(args[0])
	size, _ := strconv.Atoi(args[1])
	count, _ := strconv.Atoi(args[4])
	rounds, _ := strconv.Atoi(args[5])
	err := func() error {
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
		if args[3] == "tcp" {
			o.HostID = args[0]
		}
		g, err := host.New(ctx, backend.Config{Rank: rank, Size: size, Control: control, Timeout: soon}, o)
		if err != nil {
			return err
		}
		defer g.Close(ctx)
		for i := range rounds {
			c := reduceCall(count)
			c.Seq, c.Timeout = uint64(i), 3*time.Second
			task, err := g.Start(c)
			if err != nil {
				return err
			}
			backendtest.Deadline(g, rank, c, task)
			if err := task.Sync(ctx); err != nil {
				return err
			}
			if i%100 == 0 {
				fmt.Println("round")
			}
		}
		return nil
	}()
	var lost *backend.PeerLostError
	var timeout *backend.TimeoutError
	switch {
	case err == nil:
		fmt.Println("ended: done")
	case errors.As(err, &lost):
		fmt.Println("ended: lost", lost.Peer, lost.Left)
	case errors.As(err, &timeout):
		fmt.Println("ended: timeout", timeout.Waiting)
	default:
		fmt.Println("ended:", err)
	}
}

// workers are the processes of a job.
type workers struct {
	cmds []*exec.Cmd
	ends []chan string // the last line that each worker printed
}

func startWorkers(t *testing.T, n int, transport string, count, rounds int) *workers {
	t.Helper()
	server, err := store.Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &workers{}
	started := make(chan struct{}, n)
	for r := range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("HOST_TEST_WORKER=%d %d %s %s %d %d", r, n, server.Addr(), transport, count, rounds))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		end := make(chan string, 1)
		w.cmds, w.ends = append(w.cmds, cmd), append(w.ends, end)
		read := make(chan struct{})
		go func() {
			defer close(read)
			defer close(end)
			first := true
			for s := bufio.NewScanner(out); s.Scan(); {
				if how, ok := strings.CutPrefix(s.Text(), "ended: "); ok {
					end <- how
				} else if first {
					started <- struct{}{}
					first = false
				}
			}
		}()
		t.Cleanup(func() {
			cmd.Process.Kill()
			<-read
			cmd.Wait()
		})
	}
	t.Cleanup(func() { server.Close() })
	for range n {
		select {
		case <-started:
		case <-time.After(soon):
			t.Fatal("the workers do not work")
		}
	}
	return w
}

func (w *workers) end(t *testing.T, rank int) string {
	t.Helper()
	select {
	case how := <-w.ends[rank]:
		return how
	case <-time.After(soon):
		t.Fatalf("rank %d does not end", rank)
		return ""
	}
}

const forever = 1 << 30

// One rank is killed while it works. All others name it. With few elements the others are often
// between two calls and fail at the next Start; the test runs many times so that a wrong rank would
// be named.
func TestKilledRankIsNamed(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		for count, times := range map[int]int{10: 20, 1 << 20: 1} {
			t.Run(fmt.Sprintf("%s/%d", transport, count), func(t *testing.T) {
				for range times {
					w := startWorkers(t, 4, transport, count, forever)
					at := time.Now()
					w.cmds[2].Process.Kill()
					for _, r := range []int{0, 1, 3} {
						if how := w.end(t, r); how != "lost 2 false" {
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
			w := startWorkers(t, 3, transport, 1<<16, forever)
			w.cmds[1].Process.Signal(syscall.SIGSTOP)
			for _, r := range []int{0, 2} {
				if how := w.end(t, r); !strings.HasPrefix(how, "timeout") {
					t.Errorf("rank %d ended: %s", r, how)
				}
			}
		})
	}
}

// All ranks close as soon as they are done.
func TestRanksCloseInGoodOrder(t *testing.T) {
	for _, transport := range []string{"shm", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			w := startWorkers(t, 3, transport, 1000, 500)
			for r := range w.cmds {
				if how := w.end(t, r); how != "done" {
					t.Errorf("rank %d ended: %s", r, how)
				}
			}
		})
	}
}
