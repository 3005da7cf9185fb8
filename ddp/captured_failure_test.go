//go:build cgo && linux

package ddp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// resumable is what a rank keeps from one group to the next.
type resumable struct {
	net nn.Module
	opt *optim.SGD
}

func newResumable() *resumable {
	net := mlp(16, device.Float32)
	return &resumable{net, must.New(optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.05, Momentum: 0.9}))}
}

// train makes captured or plain steps up to the given number. If steps are committed already, rank 0 first takes the
// state of rank 1, which is consistent because it had stopped before the step that failed.
func (r *resumable) train(pg *comm.ProcessGroup, steps int, captured bool, before func(step int)) error {
	at, _ := r.opt.Committed()
	if at > 0 {
		state := checkpoint.State{Model: r.net, Optimizers: []optim.Optimizer{r.opt}}
		if err := checkpoint.Transfer(pg.Context(), pg, state, 1, []int{0}); err != nil {
			return err
		}
	}
	model := must.New(New(r.net, pg, &Options{BucketCapMB: 0.001}))
	r.opt.ZeroGrad()
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		loss := nn.MSELoss(model.Forward(in[0]), in[0], nil)
		if err := loss.Backward(nil); err != nil {
			return nil, err
		}
		err := r.opt.Step()
		r.opt.ZeroGrad()
		return loss, err
	}
	if captured {
		step = autograd.Capture(pg.Device(), step, &autograd.CaptureOptions{Required: true})
	}
	for ; at < steps; at++ {
		before(at)
		x := samples(pg.Device(), uint64(at), 8, 16, pg.Rank(), pg.Size())
		if _, err := step(autograd.Cast(x, device.Float32)); err != nil {
			return err
		}
	}
	return nil
}

// If a rank stops within a loop of captured steps, all ranks get the error of a call that timed out, and has
// committed the same steps. In the next group they reach the parameters that they reach without the failure and without
// captured steps.
func TestEmulatedARankStopsInACapturedLoop(t *testing.T) {
	const steps, stopped, timeout = 12, 6, 2 * time.Second
	t.Setenv(jobenv.DumpOnFailureVar, "0")
	opts := &comm.Options{Timeout: timeout, Log: slog.New(slog.DiscardHandler)}
	run := func(stops bool) (states [2][]byte) {
		devices := commtest.FakeGPUs(t, 2)
		ranks := [2]*resumable{newResumable(), newResumable()}
		group := func(before func(pg *comm.ProcessGroup, step int)) {
			commtest.OnDevices(t, devices, opts, func(pg *comm.ProcessGroup) error {
				r := ranks[pg.Rank()]
				err := r.train(pg, steps, stops, func(step int) { before(pg, step) })
				if err == nil {
					states[pg.Rank()] = parameterBytes(r.net.Parameters())
					return nil
				}
				committed, _ := r.opt.Committed()
				if committed != stopped || !errors.Is(err, comm.ErrTimeout) || !strings.Contains(err.Error(), "rank 1 ") {
					return fmt.Errorf("rank %d has committed %d steps when it gets %w; want %d, and a timeout because of rank 1", pg.Rank(), committed, err, stopped)
				}
				return nil
			})
		}
		if stops {
			group(func(pg *comm.ProcessGroup, step int) {
				for step == stopped && pg.Rank() == 1 && !pg.Failed() {
					time.Sleep(time.Millisecond)
				}
			})
		}
		group(func(*comm.ProcessGroup, int) {})
		return states
	}
	want, got := run(false), run(true)
	for r := range got {
		if !bytes.Equal(got[r], want[r]) {
			t.Errorf("rank %d: the parameters after the failure differ", r)
		}
	}
}

// If a rank is killed or stops within a loop of captured steps, the other rank's step returns the error that
// it returns uncaptured, as soon.
func TestEmulatedARankIsLostInACapturedLoop(t *testing.T) {
	commtest.OutsideJobs(t)
	commtest.FakeGPUs(t, 0) // sets the environment
	loseARank(t, func(rank int) []string { return []string{"GODDP_DEVICE=cuda"} }, "captured")
}

// So it is with NCCL. On one GPU NCCL takes the ranks for ranks of two hosts.
func TestGPUARankIsLostInACapturedLoop(t *testing.T) {
	commtest.OutsideJobs(t)
	gpus := commtest.GPUs(t, 1)
	loseARank(t, func(rank int) []string {
		return []string{fmt.Sprint("GODDP_DEVICE=cuda:", rank%gpus), fmt.Sprint("NCCL_HOSTID=host", rank/gpus)}
	}, "plain", "captured")
}

// loseARank starts two ranks, each with env of its own, and checks what rank 0 prints when rank 1 is lost. No
// launcher starts the ranks: it would stop rank 0 as soon as rank 1 is killed.
func loseARank(t *testing.T, env func(rank int) []string, modes ...string) {
	for _, how := range []struct{ loss, want string }{{"killed", "ErrPeerLost"}, {"stopped", "ErrTimeout"}} {
		for _, mode := range modes {
			t.Run(how.loss+"/"+mode, func(t *testing.T) {
				dir := t.TempDir()
				ranks := testkit.World(t, 2, func(rank int) *exec.Cmd {
					cmd := testkit.Self(t, "lost", mode, how.loss)
					cmd.Env = append(append(cmd.Env, env(rank)...), "GODDP_FLIGHT_DIR="+dir)
					return cmd
				})
				ranks[0].Wait()
				ranks[0].Expect("rank 0 got "+how.want, 1)
			})
		}
	}
}

// lossTimeout is the timeout of the calls of a rank that loses the other, and lossSlack what it may take more.
const (
	lossTimeout = 3 * time.Second
	lossSlack   = 15 * time.Second // on a busy machine
)

// lostWorker is a rank of loseARank. Rank 0 prints which error it got, if it got it in time.
func lostWorker(ctx context.Context) error {
	// One timeout bounds Init and the calls. So the ranks meet first in a group with a longer one: it may take long until
	// both processes run.
	first, err := comm.Init(ctx, &comm.Options{Timeout: time.Minute})
	if err == nil {
		err = first.Close()
	}
	if err != nil {
		return err
	}
	pg, err := comm.Init(ctx, &comm.Options{ErrorMode: comm.CleanUpOnly, Timeout: lossTimeout})
	if err != nil {
		return err
	}
	signal := map[string]syscall.Signal{"killed": syscall.SIGKILL, "stopped": syscall.SIGSTOP}[os.Args[2]]
	var at time.Time
	err = newResumable().train(pg, 50, os.Args[1] == "captured", func(step int) {
		if at = time.Now(); step == 10 && pg.Rank() == 1 {
			syscall.Kill(os.Getpid(), signal)
		}
	})
	got := "another error"
	for name, is := range map[string]error{"ErrPeerLost": comm.ErrPeerLost, "ErrTimeout": comm.ErrTimeout} {
		if errors.Is(err, is) {
			got = name
		}
	}
	if took := time.Since(at); took > lossTimeout+lossSlack {
		got = "late " + got
	}
	fmt.Printf("rank %d got %s: %v\n", pg.Rank(), got, err)
	return err
}
