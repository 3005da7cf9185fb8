//go:build cgo && linux

package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/comm/internal/nccl"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/backendtest"
)

// patience is how long rank 1 waits for rank 0 in the scenario "resumed".
const patience = 200 * time.Millisecond

// resumed makes groups, one after the other. In each, the ranks reduce twice, and rank 0 is
// suspended before the second time.
func resumed(m *backendtest.Rank, groups int) error {
	var wrong []error
	for i := range groups {
		control, _, err := m.Control.Make(context.Background(), fmt.Sprint("again ", i), m.Control.Members, nil)
		if err != nil {
			return err
		}
		cfg := backend.Config{Rank: m.Rank, Size: m.Size, Control: control, Device: m.Device, Timeout: time.Minute}
		b, err := nccl.New(context.Background(), cfg, &nccl.Options{NoSmallAllReduce: true})
		if err != nil {
			return err
		}
		again := newRank(b, cfg)
		if err = suspended(again, []int{60_000, large}[i%2]); !errors.Is(err, failure.ErrTimeout) {
			wrong = append(wrong, fmt.Errorf("group %d: %w", i, err))
		}
		if m.Rank == 1 {
			fmt.Println("broke")
		}
		if err := backendtest.CloseAll([]*backendtest.Rank{again}, 10*time.Second); err != nil {
			return err
		}
	}
	return errors.Join(wrong...)
}

// suspended returns the error of the second call.
func suspended(m *backendtest.Rank, count int) error {
	var calls [2]*backend.Call
	for i := range calls {
		h := backendtest.HostTensor(device.Float32, count)
		for e := range count {
			backendtest.Put(h, e, float64(10*i+m.Rank))
		}
		x, err := m.Upload(h)
		if err != nil {
			return err
		}
		calls[i] = &backend.Call{Kind: backend.AllReduce, Dst: x, Src: x}
	}
	err := m.Run(calls[0]) // on a busy machine rank 1 may give up the second call before rank 0 has seen the end of the first
	if m.Rank == 0 {
		runtime.LockOSThread() // Tgkill stops this thread at once; a signal to the process might stop it a moment later
		unix.Tgkill(os.Getpid(), unix.Gettid(), syscall.SIGSTOP)
		runtime.UnlockOSThread()
	} else {
		calls[1].Timeout = patience
	}
	if err != nil {
		return err
	}
	if err := m.Run(calls[1]); err != nil {
		return err
	}
	got, err := m.Download(calls[1].Dst)
	if err != nil {
		return err
	}
	return fmt.Errorf("the call that rank 1 gave up ended well, and the last sum is %v, where 21 were right", backendtest.Get(got, count-1))
}

// suspend resumes rank 0 when rank 1 has timed out, or some milliseconds later.
func suspend(t *testing.T, kind, scenario string, groups int) {
	w := launch(t, kind, 2, fmt.Sprint(scenario, "-", groups))
	for i := range groups {
		w[1].Await("^broke$", i+1)
		w[0].AwaitStop()
		time.Sleep(time.Duration(i%5) * time.Millisecond)
		w[0].Signal(syscall.SIGCONT)
	}
	for r := range 2 {
		if how := w.said(r, "ended"); how != "done" {
			t.Errorf("rank %d ended: %s", r, how)
		}
	}
}

// Rank 1 times out while rank 0 is suspended. When rank 0 resumes, rank 1's abort has put invalid
// data into rank 0's call, which must fail.
func TestEmulatedSuspendedRankFailsWhenItResumes(t *testing.T) {
	control(t)
	suspend(t, "fakegpu", "resumed", 10)
}

// The suspended rank hosts the coordinator, which has not read the other rank's report when it
// resumes.
func TestEmulatedSuspendedCoordinatorFailsWhenItResumes(t *testing.T) {
	control(t)
	suspend(t, "fakegpu", "hosted-resumed", 1)
}

func TestGPUSuspendedRankFailsWhenItResumes(t *testing.T) {
	real(t, 2)
	suspend(t, "real", "resumed", 50)
}
