package comm_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// Close ends an AllGatherObject of another goroutine, whose memory it leaves alone until the call has freed it.
func TestCloseDuringAllGatherObject(t *testing.T) {
	for range 50 {
		groups, err := comm.Local(2, nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, pg := range groups {
			first := make(chan struct{})
			wg.Go(func() {
				end := sync.OnceFunc(func() { close(first) })
				defer end()
				for {
					if _, err := comm.AllGatherObject(context.Background(), pg, "object"); err != nil {
						return
					}
					end()
				}
			})
			wg.Go(func() {
				<-first
				pg.Close()
			})
		}
		wg.Wait()
	}
}

// narrow is a device with little memory.
type narrow struct{ device.Device }

func (d narrow) Alloc(size int) (device.Buffer, error) {
	if size > 1000 {
		return device.Buffer{}, &device.OutOfMemoryError{Device: "narrow", Asked: int64(size)}
	}
	return d.Device.Alloc(size)
}

// If a rank has no memory for an object, the other ranks fail at once, not at their deadline, and with the cause.
func TestNoMemoryForAnObject(t *testing.T) {
	devices := []device.Device{cpu.New(&cpu.Options{Threads: 1}), narrow{cpu.New(&cpu.Options{Threads: 1})}}
	for _, d := range devices {
		defer d.Close()
	}
	commtest.OnDevices(t, devices, &comm.Options{Timeout: time.Hour}, func(pg *comm.ProcessGroup) error {
		if _, err := comm.AllGatherObject(t.Context(), pg, make([]byte, 4000)); err == nil || !strings.Contains(err.Error(), "out of device memory") {
			return fmt.Errorf("rank %d: %v, want the error of rank 1's memory", pg.Rank(), err)
		}
		return nil
	})
}

// If a rank sends a wrong size for its object, the other ranks return an error before they
// allocate memory for the object. Here rank 1 sends an arbitrary number as its size.
func TestObjectSizesAreBounded(t *testing.T) {
	for _, size := range []int64{1<<30 + 1, 2e9, 1 << 60, -7} {
		groups, err := comm.Local(2, nil)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := comm.AllGatherInts(context.Background(), groups[1], []int64{size}); err != nil {
				t.Error(err)
			}
		})
		_, err = comm.AllGatherObject(context.Background(), groups[0], "object")
		if err == nil || !strings.Contains(err.Error(), "rank 1") {
			t.Errorf("a size of %d: %v", size, err)
		}
		wg.Wait()
		for _, g := range groups {
			g.Abort(nil)
			g.Close()
		}
	}
}
