package zero

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The tests of this package that work with any number of ranks also run on two real processes.
func TestOnProcesses(t *testing.T) { commtest.Processes(t, 2, "GODDP_DEVICE=cpu") }

// TestGPUOnProcesses does the same as TestOnProcesses, on two processes with a GPU each. With more
// processes NCCL sums in another order in an all-reduce than in a reduce-scatter.
func TestGPUOnProcesses(t *testing.T) { commtest.ProcessesOnGPUs(t, 2) }

// width is the width of all models here. It is not a power of two, so that shards cut through
// parameters.
const width = 9

// small are options with which a small model has several buckets.
var small = &ddp.Options{BucketCapMB: 0.00015}

// stepper is an optimizer, with shards or without.
type stepper interface {
	optim.Optimizer
	optim.ScaledStepper
}

// maker makes an optimizer.
type maker func(params []*nn.Parameter) (Local, error)

func sgd(params []*nn.Parameter) (Local, error) {
	return optim.NewSGD(params, &optim.SGDOptions{LR: 0.05, Momentum: 0.9, WeightDecay: 0.01, Nesterov: true, MasterWeights: true})
}

func adamW(params []*nn.Parameter) (Local, error) {
	return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.01, WeightDecay: 0.1, MasterWeights: true})
}

// narrowAdamW is adamW with moments of BFloat16.
func narrowAdamW(params []*nn.Parameter) (Local, error) {
	return optim.NewAdamW(params, &optim.AdamWOptions{LR: 0.01, WeightDecay: 0.1, MasterWeights: true, MomentDType: device.BFloat16})
}

// grouped has no weight decay for biases. It forms groups by name.
func grouped(params []*nn.Parameter) (Local, error) {
	var groups [2]optim.AdamWGroup
	groups[0].AdamWOptions = optim.AdamWOptions{LR: 0.01, WeightDecay: 0.1}
	groups[1].AdamWOptions = optim.AdamWOptions{LR: 0.02}
	for _, p := range params {
		i := 0
		if bytes.Contains([]byte(p.Name()), []byte("bias")) {
			i = 1
		}
		groups[i].Params = append(groups[i].Params, p)
	}
	return optim.NewAdamW(groups[1].Params, &groups[1].AdamWOptions, groups[0])
}

// muon orthogonalizes the steps of matrices.
func muon(params []*nn.Parameter) (Local, error) {
	var matrices, rest []*nn.Parameter
	for _, p := range params {
		if len(p.Shape()) == 2 {
			matrices = append(matrices, p)
		} else {
			rest = append(rest, p)
		}
	}
	return optim.NewMuon(matrices, &optim.MuonOptions{LR: 0.02, WeightDecay: 0.1, MasterWeights: true},
		optim.AdamWGroup{Params: rest, AdamWOptions: optim.AdamWOptions{LR: 0.01, MasterWeights: true}})
}

// wrapped is a wrapped model and its optimizer, with shards or without.
type wrapped struct {
	model interface {
		nn.Module
		NoSync(f func() error) error
	}
	opt   stepper
	zero  *Optimizer[Local] // nil without shards
	local Local
}

// divided wraps a module with shards.
func divided(net nn.Module, pg *comm.ProcessGroup, make maker, opts *ddp.Options) (w wrapped, err error) {
	model, opt, err := New(net, pg, make, &Options{Options: *cmp.Or(opts, &ddp.Options{})})
	if err != nil {
		return w, err
	}
	return wrapped{model, opt, opt, opt.Local()}, nil
}

// whole wraps a module without shards.
func whole(net nn.Module, pg *comm.ProcessGroup, make maker, opts *ddp.Options) (w wrapped, err error) {
	model, err := ddp.New(net, pg, opts)
	if err != nil {
		return w, err
	}
	opt, err := make(model.Parameters())
	if err != nil {
		return w, err
	}
	return wrapped{model, opt.(stepper), nil, opt}, nil
}

// wrapper is divided or whole.
type wrapper func(nn.Module, *comm.ProcessGroup, maker, *ddp.Options) (wrapped, error)

// asWithoutShards trains without shards and with shards, and returns an error unless both end with the same parameters,
// bit for bit.
func asWithoutShards(train func(wrap wrapper) (nn.Module, error)) error {
	want, err := train(whole)
	if err != nil {
		return fmt.Errorf("without shards: %w", err)
	}
	got, err := train(divided)
	if err == nil && !bytes.Equal(allBits(got), allBits(want)) {
		err = errors.New("the parameters differ from those of training without shards")
	}
	return err
}

func (w wrapped) stats() ddp.Stats {
	if m, ok := w.model.(*Model); ok {
		return m.Stats()
	}
	return w.model.(*ddp.Model).Stats()
}

func mlp(o nn.LinearOptions) nn.Module {
	linear := func() nn.Module { return nn.Linear(width, width, &o) }
	return nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU(), linear())
}

var double = nn.LinearOptions{DType: device.Float64}

// samples returns this rank's part of a batch.
func samples(pg *comm.ProcessGroup, dt device.DType, seed int) *autograd.Variable {
	const rows = 8 // the rows of all ranks together
	n := rows / pg.Size()
	v := autograd.Zeros(pg.Device(), dt, n, width)
	dev := pg.Device()
	if err := kernels.Of(dev).Normal(dev.Compute(), v.Tensor(), 0, 1, uint64(seed), uint64(pg.Rank()*n*width)); err != nil {
		panic(err)
	}
	return v
}

// loss returns the loss of a step.
func (w wrapped) loss(pg *comm.ProcessGroup, dt device.DType, step int) *autograd.Variable {
	return nn.MSELoss(w.model.Forward(samples(pg, dt, 2*step)), samples(pg, dt, 2*step+1), nil)
}

// train makes the steps from from up to, but not including, to, and returns the losses.
func (w wrapped) train(pg *comm.ProcessGroup, dt device.DType, from, to int) (losses []float64, err error) {
	for step := from; step < to; step++ {
		l := w.loss(pg, dt, step)
		if err := l.Backward(nil); err != nil {
			return nil, err
		}
		if err := w.opt.Step(); err != nil {
			return nil, err
		}
		w.opt.ZeroGrad()
		losses = append(losses, l.Item())
	}
	return losses, nil
}

// bits returns a copy of the bytes of a variable.
func bits(v *autograd.Variable) []byte {
	dev, mem := v.Device(), make([]byte, v.Tensor().Bytes())
	if err := dev.CopyOut(context.Background(), dev.Compute(), mem, v.Tensor().Buf); err != nil {
		panic(err)
	}
	return mem
}

// allBits returns the bytes of all parameters.
func allBits(net nn.Module) (all []byte) {
	for _, p := range net.Parameters() {
		all = append(all, bits(p.Var())...)
	}
	return all
}

// devices returns n devices. With lag they run work later than the host enqueues it, as GPUs do.
func devices(t *testing.T, n int, lag bool) (all []device.Device) {
	for range n {
		var d device.Device = cpu.New(&cpu.Options{Threads: 1})
		t.Cleanup(func() { d.Close() })
		if lag {
			d = devicetest.Lagging(d)
		}
		all = append(all, d)
	}
	return all
}

// quiet returns options without a log, for groups that break.
func quiet() *comm.Options { return &comm.Options{Log: slog.New(slog.DiscardHandler)} }

// onBoth runs f on each of the given numbers of ranks, with both kinds of devices.
func onBoth(t *testing.T, f func(pg *comm.ProcessGroup) error, ranks ...int) {
	for _, n := range commtest.Sizes(t, ranks...) {
		t.Run(fmt.Sprintf("%d ranks", n), func(t *testing.T) { commtest.OnRanks(t, n, quiet(), f) })
		t.Run(fmt.Sprintf("%d ranks, lagging", n), func(t *testing.T) { commtest.OnDevices(t, devices(t, n, true), quiet(), f) })
	}
}

// Training with shards has bit-identical losses and parameters to training without, and so is the
// gathered state. Each rank keeps only its part of the state.
func TestTrainsAsWithoutShards(t *testing.T) {
	const steps = 6
	bf := nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}
	for _, c := range []struct {
		name string
		make maker
		o    nn.LinearOptions
		in   device.DType
		opts *ddp.Options
	}{
		{"SGD", sgd, double, device.Float64, small},
		{"AdamW", adamW, double, device.Float64, small},
		{"groups by name", grouped, double, device.Float64, small},
		{"Muon", muon, double, device.Float64, small},
		{"Muon, 16 bits", muon, bf, device.Float32, small},
		{"SGD, 16 bits", sgd, bf, device.Float32, small},
		{"AdamW, 16 bits", adamW, bf, device.Float32, small},
		{"AdamW, 16 bits and moments of 16 bits", narrowAdamW, bf, device.Float32, small},
		{"AdamW, 16 bits reduced in 32", adamW, bf, device.Float32, &ddp.Options{BucketCapMB: small.BucketCapMB, ReduceDType: device.Float32}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, func(pg *comm.ProcessGroup) error {
				a, b := mlp(c.o), mlp(c.o)
				plain := must.New(whole(a, pg, c.make, c.opts))
				sharded := must.New(divided(b, pg, c.make, c.opts))
				if n := len(sharded.zero.shards.buckets); n < 3 {
					return fmt.Errorf("%d buckets, want several", n)
				}
				want, err := plain.train(pg, c.in, 0, steps)
				if err != nil {
					return err
				}
				got, err := sharded.train(pg, c.in, 0, steps)
				if err != nil || !slices.Equal(got, want) {
					return fmt.Errorf("losses %v, %v; want %v", got, err, want)
				}
				if !bytes.Equal(allBits(a), allBits(b)) {
					return errors.New("the parameters differ from those of training without shards")
				}
				if n, whole := sharded.zero.Committed(); n != steps || !whole {
					return fmt.Errorf("%d steps committed, whole: %v", n, whole)
				}
				return sameState(pg, sharded, plain)
			}, 1, 2, 4)
		})
	}
}

// newLocal gets the names, shapes and types of whole parameters. The parts of a parameter on all
// ranks together hold its elements.
func TestPartsHaveNameAndShapeOfTheWhole(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		net := mlp(double)
		elements := make(map[string]int64)
		w, err := divided(net, pg, func(params []*nn.Parameter) (Local, error) {
			for _, p := range params {
				elements[p.String()] = int64(p.Var().Tensor().Len())
			}
			return sgd(params)
		}, small)
		if err != nil {
			return err
		}
		if _, err := w.train(pg, device.Float64, 0, 1); err != nil {
			return err
		}
		for _, p := range net.Parameters() {
			mine, there := elements[p.String()]
			all := must.New(comm.AllGatherInts(context.Background(), pg, []int64{mine}))
			var sum int64
			for _, theirs := range all {
				sum += theirs[0]
			}
			if !there || sum != int64(p.Shape().Len()) {
				return fmt.Errorf("%v: %d elements in parts of this name and shape, of %v", p, sum, elements)
			}
		}
		state, err := w.zero.State()
		if err != nil {
			return err
		}
		for _, b := range state {
			name, _, _ := strings.Cut(b.Name(), ".velocity")
			for _, p := range w.opt.Parameters() {
				if p.Name() == name && !b.Shape().Equal(p.Var().Shape()) {
					return fmt.Errorf("%s is %v, its part %v", b.Name(), b.Shape(), p.Var().Shape())
				}
			}
		}
		return nil
	}, 2, 4)
}

// sameState compares the gathered state with that of an optimizer without shards, and checks how
// much of the state this rank keeps.
func sameState(pg *comm.ProcessGroup, sharded, plain wrapped) error {
	got := must.New(sharded.state(pg))
	want := must.New(plain.state(pg))
	if !maps.EqualFunc(got, want, equal) {
		return errors.New("the state differs from that without shards")
	}
	all, kept := 0, 0
	for _, v := range want {
		all += v.Tensor().Bytes()
	}
	mine, err := sharded.zero.State()
	for _, b := range mine {
		kept += b.Var().Tensor().Bytes()
	}
	// Every rank has the numbers of updates, and a shard is a multiple of Align.
	shards := sharded.zero.shards
	most := all/pg.Size() + 16*len(mine) + 2*device.Align*len(shards.buckets)*len(mine)/len(shards.parts)
	if err == nil && kept > most {
		err = fmt.Errorf("rank %d keeps %d bytes of state of %d, want %d at most", pg.Rank(), kept, all, most)
	}
	return err
}

// state returns the whole state by name.
func (w wrapped) state(pg *comm.ProcessGroup) (map[string]*autograd.Variable, error) {
	if w.zero != nil {
		return gathered(pg, w.zero)
	}
	byName := map[string]*autograd.Variable{}
	state, err := w.local.State()
	for _, b := range state {
		byName[b.Name()] = b.Var()
	}
	return byName, err
}

// gathered returns the whole state.
func gathered(pg *comm.ProcessGroup, opt *Optimizer[Local]) (map[string]*autograd.Variable, error) {
	saved := map[string]*autograd.Variable{}
	dev := pg.Device()
	err := opt.Gather(context.Background(), func(name string, whole device.Tensor) error {
		v := autograd.Zeros(dev, whole.DType, whole.Shape...)
		saved[name] = v
		return dev.Kernels().Copy(dev.Compute(), v.Tensor(), whole)
	})
	return saved, err
}
