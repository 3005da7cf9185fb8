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
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/internal/flight"
	"github.com/goddp/goddp/internal/must"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func init() { workers["lost"] = lostWorker }

// resumable is what a rank keeps from one group to the next.
type resumable struct {
	net nn.Module
	opt *optim.SGD
}

func newResumable() *resumable {
	net := mlp(64, device.Float32)
	return &resumable{net, must.New(optim.NewSGD(net.Parameters(), &optim.SGDOptions{LR: 0.05, Momentum: 0.9}))}
}

// train recovers, and makes captured or plain steps up to the given number.
func (r *resumable) train(pg *comm.ProcessGroup, steps int, captured bool, before func(step int)) error {
	at, err := Recover(r.net, pg, r.opt)
	if err != nil {
		return err
	}
	model, err := New(r.net, pg, &Options{BucketCapMB: 0.01})
	if err != nil {
		return err
	}
	step := func(in ...*autograd.Variable) (*autograd.Variable, error) {
		loss := nn.MSELoss(model.Forward(in[0]), in[0])
		if err := loss.Backward(); err != nil {
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
		x := samples(pg.Device(), uint64(at), 8, 64, pg.Rank(), pg.Size())
		if _, err := step(autograd.Cast(x, device.Float32)); err != nil {
			return err
		}
	}
	return nil
}

// If a rank stops within a loop of captured steps, all ranks get the errors that they get uncaptured, in the
// same time. They recover, and reach the parameters that they reach without the failure.
func TestRecoverAfterARankStopsInACapturedLoop(t *testing.T) {
	const steps, stopped, timeout = 14, 7, 2 * time.Second
	t.Setenv(flight.OnFailureVar, "0")
	opts := &comm.Options{Timeout: timeout, Log: slog.New(slog.DiscardHandler)}
	run := func(captured, stops bool) (states [2][]byte, broken [2]error) {
		devices := commtest.FakeGPUs(t, 2)
		ranks := [2]*resumable{newResumable(), newResumable()}
		group := func(before func(pg *comm.ProcessGroup, step int)) {
			commtest.OnDevices(t, devices, opts, func(pg *comm.ProcessGroup) error {
				r := ranks[pg.Rank()]
				began := time.Now()
				err := r.train(pg, steps, captured, func(step int) {
					began = time.Now()
					before(pg, step)
				})
				if err == nil {
					states[pg.Rank()], err = readParameters(t.Context(), r.net.Parameters())
					return err
				}
				if broken[pg.Rank()] = err; time.Since(began) > timeout+lossSlack {
					return fmt.Errorf("rank %d got %v after %v", pg.Rank(), err, time.Since(began))
				}
				if committed, _ := r.opt.Committed(); committed != stopped {
					return fmt.Errorf("rank %d has committed %d steps when it gets %v, want %d", pg.Rank(), committed, err, stopped)
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
		return states, broken
	}
	want, _ := run(false, false)
	plain, plainErrs := run(false, true)
	// Uncaptured, a rank that begins its step between the failure and the abort may still complete the
	// reduction, and then no rank is consistent: Recover says so. Such a run is no reference.
	var lost *LostStateError
	for tries := 1; tries < 10 && errors.As(plainErrs[0], &lost); tries++ {
		plain, plainErrs = run(false, true)
	}
	got, errs := run(true, true)
	prefix := regexp.MustCompile(`^the captured step was not launched: `)
	// The diagnosis depends on whether the rank that stops sends its record in time.
	diagnosis := regexp.MustCompile(`rank 1 (is behind: it is busy, or stuck, outside communication|left no record, and others wait for it)`)
	withoutDiagnosis := func(err error) string {
		return diagnosis.ReplaceAllString(prefix.ReplaceAllString(err.Error(), ""), "(diagnosis)")
	}
	for r := range got {
		if !errors.Is(errs[r], comm.ErrTimeout) || !errors.Is(plainErrs[r], comm.ErrTimeout) {
			t.Errorf("rank %d got %v with captured steps, and %v without; want a timeout", r, errs[r], plainErrs[r])
		} else if withoutDiagnosis(errs[r]) != withoutDiagnosis(plainErrs[r]) || !diagnosis.MatchString(errs[r].Error()) {
			t.Errorf("rank %d got\n%v with captured steps, and\n%v without", r, errs[r], plainErrs[r])
		}
		if !bytes.Equal(got[r], want[r]) || !bytes.Equal(plain[r], want[r]) {
			t.Errorf("rank %d: the parameters after the failure differ; captured: %v", r, !bytes.Equal(got[r], want[r]))
		}
	}
}

// readParameters returns the content of parameters on any device.
func readParameters(ctx context.Context, params []*nn.Parameter) (all []byte, err error) {
	for _, p := range params {
		b, err := p.Var().Bytes(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, b...)
	}
	return all, nil
}

// If a rank is killed or stops within a loop of captured steps, the other rank's step returns the error that
// it returns uncaptured, as soon.
func TestARankIsLostInACapturedLoop(t *testing.T) {
	commtest.OutsideJobs(t)
	commtest.FakeGPUs(t, 0) // sets the environment
	loseARank(t, func(rank int) []string { return []string{"GODDP_DEVICE=cuda"} })
}

// So it is with NCCL. On one GPU NCCL takes the ranks for ranks of two hosts.
func TestGPUARankIsLostInACapturedLoop(t *testing.T) {
	commtest.OutsideJobs(t)
	gpus := commtest.GPUs(t, 1)
	loseARank(t, func(rank int) []string {
		return []string{fmt.Sprint("GODDP_DEVICE=cuda:", rank%gpus), fmt.Sprint("NCCL_HOSTID=host", rank/gpus)}
	})
}

// loseARank starts two ranks, each with env of its own, and checks what rank 0 prints when rank 1 is lost. No
// launcher starts the ranks: it would stop rank 0 as soon as rank 1 is killed.
func loseARank(t *testing.T, env func(rank int) []string) {
	for _, how := range []struct{ loss, want string }{{"killed", "ErrPeerLost"}, {"stopped", "ErrTimeout"}} {
		for _, mode := range []string{"plain", "captured"} {
			t.Run(how.loss+"/"+mode, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				port, _ := testkit.Port(t)
				var ranks [2]*exec.Cmd
				var out bytes.Buffer // of rank 0
				for r := range ranks {
					ranks[r] = exec.CommandContext(ctx, os.Args[0], mode, how.loss)
					ranks[r].Env = append(append(os.Environ(), env(r)...), workerMode+"=lost", "GODDP_FLIGHT_DIR="+t.TempDir(), fmt.Sprint("RANK=", r), "WORLD_SIZE=2",
						fmt.Sprint("LOCAL_RANK=", r), "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port))
					if r == 0 {
						ranks[r].Stdout, ranks[r].Stderr = &out, &out
					}
					if err := ranks[r].Start(); err != nil {
						t.Fatal(err)
					}
				}
				ranks[0].Wait() // what rank 0 printed is checked
				ranks[1].Process.Kill()
				ranks[1].Wait()
				if !bytes.Contains(out.Bytes(), []byte("rank 0 got "+how.want)) {
					t.Errorf("rank 0 printed\n%s", &out)
				}
				t.Logf("%s", &out)
			})
		}
	}
}

// lossTimeout is the timeout of the calls of a rank that loses the other, and lossSlack what it may take more.
const (
	lossTimeout = 5 * time.Second
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
	took := time.Since(at)
	switch {
	case took > lossTimeout+lossSlack:
		fmt.Printf("rank %d got its error after %v, want at most %v: %v\n", pg.Rank(), took, lossTimeout+lossSlack, err)
	case errors.Is(err, comm.ErrPeerLost):
		fmt.Printf("rank %d got ErrPeerLost after %v: %v\n", pg.Rank(), took, err)
	case errors.Is(err, comm.ErrTimeout):
		fmt.Printf("rank %d got ErrTimeout after %v: %v\n", pg.Rank(), took, err)
	}
	return err
}
