//go:build unix

package comm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
)

// In the test program starved, rank 1 opens files until it has no free file descriptor left.
// Then rank 0 tries to share memory with rank 1. To receive that memory, rank 1 needs a free
// descriptor.
func starved(ctx context.Context, pg *comm.ProcessGroup) error {
	const elements = 1 << 20
	buf, err := pg.Alloc(4 * elements)
	if err != nil {
		return err
	}
	var taken []*os.File
	if pg.Rank() == 1 {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: 256, Max: 256}); err != nil {
			return err
		}
		for {
			f, err := os.Open(os.DevNull)
			if errors.Is(err, syscall.EMFILE) {
				break
			}
			if err != nil {
				return err
			}
			taken = append(taken, f)
		}
	}
	if err = pg.Barrier().Wait(ctx); err == nil { // rank 0 may already share the memory of the next call
		err = pg.AllReduce(device.NewTensor(buf, device.Float32, elements), comm.Sum).Wait(ctx)
	}
	for _, f := range taken {
		f.Close()
	}
	if err == nil {
		return errors.New("the reduction succeeded")
	}
	fmt.Println(err)
	return nil
}

// If a rank has no free file descriptor for memory that rank 0 shares with it, the errors of
// both ranks name that rank as the cause. The errors do not say that a rank was lost.
func TestRankOutOfDescriptorsIsNotLost(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Linux) // where ranks share memory
	for r, p := range startWorld(t, 2, "starved") {
		const want = "rank 1 cannot map the shared memory of rank 0: "
		if code, out := p.Wait(), p.Stdout(); code != 0 || !strings.Contains(out, want) || !strings.Contains(out, "reached its limit of open files") || strings.Contains(out, "lost") {
			t.Errorf("rank %d: exit code %d, got %q, want %q", r, code, out, want)
		}
	}
}

// A world of one rank opens no socket.
func TestAWorldOfOneOpensNoSocket(t *testing.T) {
	testkit.Need(t, testkit.Linux) // for /proc
	sockets := func() (n int) {
		files, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if to, _ := os.Readlink("/proc/self/fd/" + f.Name()); strings.HasPrefix(to, "socket:") {
				n++
			}
		}
		return n
	}
	before := sockets()
	pg, err := comm.Init(t.Context(), &comm.Options{World: &comm.World{Size: 1}, Device: cpu.New(nil)})
	if err != nil {
		t.Fatal(err)
	}
	defer pg.Close()
	if err := pg.Barrier().Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if n := sockets(); n > before {
		t.Errorf("%d sockets, and %d before", n, before)
	}
}
