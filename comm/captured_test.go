//go:build cgo && linux

package comm_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// reduction is a step that sums x over the ranks into sum.
type reduction struct {
	pg     *comm.ProcessGroup
	x, sum device.Tensor
	work   *comm.Work

	timeout time.Duration
}

func newReduction(pg *comm.ProcessGroup, n int) (*reduction, error) {
	r := &reduction{pg: pg}
	for _, t := range []*device.Tensor{&r.x, &r.sum} {
		buf, err := pg.Alloc(4 * n)
		if err != nil {
			return nil, err
		}
		*t = device.NewTensor(buf, device.Float32, n)
	}
	return r, nil
}

func (r *reduction) step() error {
	dev := r.pg.Device()
	if err := dev.Copy(dev.Compute(), r.sum.Buf, r.x.Buf); err != nil {
		return err
	}
	r.work = r.pg.With(&comm.CallOptions{Name: "the sum", Timeout: r.timeout}).AllReduce(r.sum, comm.Sum)
	return r.work.Wait(context.Background())
}

// run gives x the value v, makes a step, and checks that the sum is want.
func (r *reduction) run(t *testing.T, step func() error, v, want float32) error {
	dev := r.pg.Device()
	if err := dev.Kernels().Fill(dev.Compute(), r.x, float64(v)); err != nil {
		return err
	}
	if err := step(); err != nil {
		return err
	}
	got := make([]float32, r.sum.Len())
	if err := dev.CopyOut(t.Context(), dev.Compute(), device.HostTensor(got, device.Invalid).Buf.Host(), r.sum.Buf); err != nil {
		return err
	}
	for i, x := range got {
		if x != want {
			return fmt.Errorf("rank %d: element %d of the sum is %v, want %v", r.pg.Rank(), i, x, want)
		}
	}
	return nil
}

// Replays of a captured all-reduce give the sums, beside calls that are not captured, and whether or not
// the other ranks capture theirs. Each replay is a call with a number of its own.
func TestEmulatedRecordedCallsAreReplayed(t *testing.T) {
	const ranks, steps = 2, 3
	for kernel, elements := range map[string]int{"NCCL": 100, "the kernel for small ones": 100, "wide lines": 50_000} {
		for _, capturing := range []int{1, ranks} { // the number of ranks that capture
			t.Run(fmt.Sprintf("by %s, %d ranks capture", kernel, capturing), func(t *testing.T) {
				faults := []string{}
				if kernel != "NCCL" {
					faults = []string{"ipc 0", "ipc 1"}
				}
				commtest.OnDevices(t, commtest.FakeGPUs(t, ranks, faults...), nil, func(pg *comm.ProcessGroup) error {
					r, err := newReduction(pg, elements)
					if err != nil {
						return err
					}
					one := func(step func() error, n int) error {
						return r.run(t, step, float32(pg.Rank()+n), float32(2*n+1))
					}
					if err := one(r.step, 1); err != nil {
						return err
					}
					step := r.step
					if pg.Rank() < capturing {
						made, err := capture.Capture(t.Context(), pg.Device(), nil, r.step)
						if err != nil {
							return err
						}
						defer made.Close()
						if done, err := r.work.Done(); done || err != nil {
							return fmt.Errorf("the captured call is done: %v, %v, before the first replay", done, err)
						}
						step = made.Replay
					}
					for n := range steps {
						if err := one(step, n); err != nil {
							return err
						}
						if err := r.work.Sync(t.Context()); err != nil {
							return err
						}
						if want := fmt.Sprintf("AllReduce #%d(", 2*n+2); !strings.Contains(r.work.String(), want) && pg.Rank() < capturing {
							return fmt.Errorf("after replay %d the call is %v, want %s", n, r.work, want)
						}
						if err := one(r2(r), 10*n); err != nil {
							return err
						}
					}
					return nil
				})
			})
		}
	}
}

// r2 returns a step that is not captured, and keeps the captured call.
func r2(r *reduction) func() error {
	return func() error {
		work := r.work
		defer func() { r.work = work }()
		return r.step()
	}
}

// A replay that waits for a rank is aborted at its deadline. All ranks get an error, and later replays
// are refused: the group has freed the graph, for which NCCL's abort would wait.
func TestEmulatedHangingReplayIsAborted(t *testing.T) {
	const timeout = time.Second
	commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
		r, err := newReduction(pg, 1000)
		if err != nil {
			return err
		}
		r.timeout = timeout
		made, err := capture.Capture(t.Context(), pg.Device(), nil, r.step)
		if err != nil {
			return err
		}
		defer made.Close()
		if err := r.run(t, made.Replay, 1, 2); err != nil {
			return err
		}
		start := time.Now()
		if pg.Rank() == 0 {
			if err := made.Replay(); err != nil {
				return err
			}
			err := r.work.Sync(t.Context())
			if !errors.Is(err, comm.ErrTimeout) || !strings.Contains(err.Error(), "the sum") {
				return fmt.Errorf("the replay that rank 1 did not join gave %v", err)
			}
		} else {
			for !pg.Failed() {
				time.Sleep(time.Millisecond)
			}
		}
		if took := time.Since(start); took > timeout+15*time.Second { // a busy machine may take long
			return fmt.Errorf("rank %d: the abort took %v", pg.Rank(), took)
		}
		err = made.Replay()
		if pg.Rank() == 1 && err == nil { // the replay was launched before the rank broke its group
			if r.work.Sync(t.Context()) == nil {
				return errors.New("a replay in a broken group succeeded")
			}
			err = made.Replay()
		}
		var notLaunched *capture.NotLaunchedError
		if !errors.As(err, &notLaunched) {
			return fmt.Errorf("rank %d: a replay in a broken group gave %v", pg.Rank(), err)
		}
		return nil
	})
}

// A step that is captured in a broken group fails with the group's error, which does not keep later steps from being
// captured.
func TestEmulatedCaptureInABrokenGroup(t *testing.T) {
	commtest.OnDevices(t, commtest.FakeGPUs(t, 1), nil, func(pg *comm.ProcessGroup) error {
		r, err := newReduction(pg, 100)
		if err != nil {
			return err
		}
		cause := errors.New("a cause of the test")
		pg.Abort(cause)
		_, err = capture.Capture(t.Context(), pg.Device(), nil, r.step)
		var refused *capture.RefusedError
		if errors.As(err, &refused) || !errors.Is(err, comm.ErrAborted) {
			return fmt.Errorf("got %v, want that the group was aborted, and no refusal", err)
		}
		return nil
	})
}

// A call that cannot be captured, since it copies to the host, fails the capture. It leaves the group alone: the step
// can run without a capture.
func TestEmulatedCallThatCannotBeCaptured(t *testing.T) {
	commtest.OnDevices(t, commtest.FakeGPUs(t, 1), nil, func(pg *comm.ProcessGroup) error {
		step := func() error {
			_, err := comm.AllGatherInts(t.Context(), pg, []int64{1})
			return err
		}
		if made, err := capture.Capture(t.Context(), pg.Device(), nil, step); err == nil {
			made.Close()
			return errors.New("a copy to the host was captured")
		}
		if pg.Failed() {
			return errors.New("the group is broken")
		}
		return step()
	})
}

// A call of another goroutine does not become a part of the step that is being captured.
func TestEmulatedCallBesideACapture(t *testing.T) {
	commtest.OnDevices(t, commtest.FakeGPUs(t, 1), nil, func(pg *comm.ProcessGroup) error {
		captured, err := newReduction(pg, 100)
		if err != nil {
			return err
		}
		beside, err := newReduction(pg, 100)
		if err != nil {
			return err
		}
		started, called := make(chan struct{}), make(chan error, 1)
		r, err := capture.Capture(t.Context(), pg.Device(), nil, func() error {
			go func() {
				close(started)
				w := pg.AllReduce(beside.sum, comm.Sum)
				_, err := comm.AllGatherObject(t.Context(), pg, "a value of the host")
				called <- errors.Join(w.Wait(t.Context()), err)
			}()
			<-started
			for range 100 { // so that the calls are made meanwhile
				runtime.Gosched()
			}
			return captured.step()
		})
		if err != nil {
			return err
		}
		defer r.Close()
		if err := <-called; err != nil {
			return fmt.Errorf("the call beside the capture: %w", err)
		}
		for v := range 3 {
			if err := captured.run(t, r.Replay, float32(v), float32(v)); err != nil {
				return err
			}
		}
		if pg.Failed() {
			return errors.New("the group has failed")
		}
		return nil
	})
}

// A goroutine that waits for a peer does not keep another from capturing a step.
func TestEmulatedWaitBesideACapture(t *testing.T) {
	commtest.OnDevices(t, commtest.FakeGPUs(t, 2), nil, func(pg *comm.ProcessGroup) error {
		other, err := pg.Split(t.Context(), 0, pg.Rank())
		if err != nil {
			return err
		}
		defer other.Close()
		sum, err := newReduction(pg, 100)
		if err != nil {
			return err
		}
		if err := sum.pg.AllReduce(sum.sum, comm.Sum).Sync(t.Context()); err != nil {
			return err
		}
		if pg.Rank() == 1 { // sends when rank 0 has captured
			err := pg.AllReduce(sum.sum, comm.Sum).Sync(t.Context())
			return errors.Join(err, other.Send(sum.x, 0).Sync(t.Context()))
		}
		started, received := make(chan struct{}), make(chan error, 1)
		go func() {
			w := other.Recv(sum.x, 1)
			close(started)
			received <- w.Wait(t.Context())
		}()
		<-started
		for range 100 { // so that it waits
			runtime.Gosched()
		}
		r, err := capture.Capture(t.Context(), pg.Device(), nil, func() error { return nil })
		if err != nil {
			return err
		}
		defer r.Close()
		err = pg.AllReduce(sum.sum, comm.Sum).Sync(t.Context())
		return errors.Join(err, <-received)
	})
}
