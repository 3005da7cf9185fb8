package commhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
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

// TestOnProcesses runs the tests of this package on real processes.
func TestOnProcesses(t *testing.T) { commtest.Processes(t, 2, "GODDP_DEVICE=cpu") }

// TestGPUOnProcesses does the same as TestOnProcesses, with a GPU for each process and NCCL.
func TestGPUOnProcesses(t *testing.T) { commtest.ProcessesOnGPUs(t, 2, 4) }

// onRanks runs f on n ranks. With isLagging, their devices run work later than the host enqueues
// it, as GPUs do. In a job it uses the job's devices.
func onRanks(t *testing.T, n int, isLagging bool, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	if !isLagging || commtest.InJob() {
		commtest.OnRanks(t, n, nil, f)
		return
	}
	var devices []device.Device
	for range n {
		d := devicetest.Lagging(cpu.New(&cpu.Options{Threads: 1}))
		t.Cleanup(func() { d.Close() })
		devices = append(devices, d)
	}
	commtest.OnDevices(t, devices, nil, f)
}

// onBoth runs f with both kinds of devices.
func onBoth(t *testing.T, n int, f func(pg *comm.ProcessGroup) error) {
	t.Helper()
	if commtest.InJob() {
		onRanks(t, n, false, f)
		return
	}
	for _, isLagging := range []bool{false, true} {
		t.Run(fmt.Sprint("lagging: ", isLagging), func(t *testing.T) { onRanks(t, n, isLagging, f) })
	}
}

// bits returns a copy of a tensor's memory.
func bits(dev device.Device, t device.Tensor) []byte {
	out := make([]byte, t.Bytes())
	if err := dev.CopyOut(context.Background(), dev.Compute(), out, t.Buf); err != nil {
		panic(err)
	}
	return out
}

// read returns the elements of a tensor.
func read(dev device.Device, t device.Tensor) []float64 {
	out, err := autograd.FromTensor(dev, t).Read(context.Background())
	if err != nil {
		panic(err)
	}
	return out
}

// write sets the elements of a tensor of Float32 or Float64.
func write(dev device.Device, t device.Tensor, v []float64) error {
	mem := device.HostTensor(v, device.Float64)
	if t.DType == device.Float32 {
		small := make([]float32, len(v))
		for i, x := range v {
			small[i] = float32(x)
		}
		mem = device.HostTensor(small, device.Float32)
	}
	return dev.CopyIn(dev.Compute(), t.Buf, mem.Buf.Host())
}

// hooks makes a hook for a rank.
type hooks func(pg *comm.ProcessGroup) (reducer.Hook, error)

// always makes a hook that does not depend on the group.
func always(make func() reducer.Hook) hooks {
	return func(*comm.ProcessGroup) (reducer.Hook, error) { return make(), nil }
}

// plain stands for training without a hook.
func plain(*comm.ProcessGroup) (reducer.Hook, error) { return nil, nil }

// everybody returns a new group with all ranks.
func everybody(pg *comm.ProcessGroup) (*comm.ProcessGroup, error) {
	return pg.Split(context.Background(), 0, pg.Rank())
}

// run is a training with a hook: a network with three layers in three buckets learns the function
// of another network.
type run struct {
	hook  hooks
	steps int
	each  func(model *ddp.Model) error // called after each step, if not nil
}

// train returns the loss, averaged over the ranks and the last steps, and the final parameters.
func (r run) train(pg *comm.ProcessGroup) (loss float64, params []byte, err error) {
	const width, rows, last = 24, 16, 20
	dev := pg.Device()
	hook, err := r.hook(pg)
	if err != nil {
		return 0, nil, err
	}
	linear := func() nn.Module { return nn.Linear(width, width, nil) }
	net := nn.Sequential(linear(), nn.ReLU(), linear(), nn.ReLU(), linear())
	if err := nn.Place(net, dev, 1); err != nil {
		return 0, nil, err
	}
	model, err := ddp.New(net, pg, &ddp.Options{Hook: hook, BucketCapMB: 0.001})
	if err != nil {
		return 0, nil, err
	}
	normal := func(std float64, seed uint64, shape ...int) *autograd.Variable {
		v := autograd.Zeros(dev, device.Float32, shape...)
		if err := kernels.Of(dev).Normal(dev.Compute(), v.Tensor(), 0, std, seed, 0); err != nil {
			panic(err)
		}
		return v
	}
	teacher := normal(0.3, 2, width, width)
	opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1}))
	for step := range r.steps {
		x := normal(1, uint64(100+step*pg.Size()+pg.Rank()), rows, width)
		l := nn.MSELoss(model.Forward(x), autograd.Tanh(autograd.MatMul(x, teacher)), nil)
		if err := l.Backward(nil); err != nil {
			return 0, nil, fmt.Errorf("step %d: %w", step, err)
		}
		if err := opt.Step(); err != nil {
			return 0, nil, fmt.Errorf("step %d: %w", step, err)
		}
		opt.ZeroGrad()
		if r.each != nil {
			if err := r.each(model); err != nil {
				return 0, nil, err
			}
		}
		if step < r.steps-last {
			continue
		}
		if err := pg.AllReduce(l.Tensor(), comm.Avg).Wait(context.Background()); err != nil {
			return 0, nil, err
		}
		loss += l.Item() / last
	}
	for _, p := range model.Parameters() {
		params = append(params, bits(dev, p.Var().Tensor())...)
	}
	return loss, params, nil
}

// agree returns an error unless all ranks have the same bytes.
func agree(pg *comm.ProcessGroup, what string, mine []byte) error {
	all, err := comm.AllGatherObject(context.Background(), pg, mine)
	if err != nil {
		return err
	}
	for rank, theirs := range all {
		if !bytes.Equal(theirs, all[0]) {
			return fmt.Errorf("%s of rank %d are not rank 0's", what, rank)
		}
	}
	return nil
}

// driver stands for autograd: the test supplies the gradients.
type driver struct {
	pg     *comm.ProcessGroup
	r      *buckets.Reducer
	params []reducer.Param
}

// matrices returns parameters, some of which can be compressed.
func matrices(dt device.DType) []reducer.Param {
	return []reducer.Param{
		{Name: "a", Shape: device.Shape{40, 30}, DType: dt}, {Name: "b", Shape: device.Shape{40}, DType: dt},
		{Name: "c", Shape: device.Shape{20, 5, 7}, DType: dt}, {Name: "d", Shape: device.Shape{}, DType: dt}, {Name: "e", Shape: device.Shape{2, 3}, DType: dt},
	}
}

func newDriver(pg *comm.ProcessGroup, params []reducer.Param, hook reducer.Hook, prescaled bool) (*driver, error) {
	r, err := buckets.New(context.Background(), pg, params, &buckets.Options{Hook: hook, Prescaled: prescaled, BucketCapMB: 0.002})
	return &driver{pg, r, params}, err
}

// pass reduces the given gradients of this rank; nil stands for a missing gradient. It returns the
// results.
func (e *driver) pass(grads [][]float64) ([][]float64, error) {
	for i := range e.params {
		e.r.State(i).Zero()
	}
	e.r.Begin(true, nil)
	dev := e.pg.Device()
	for _, i := range []int{4, 2, 3, 1, 0} { // another order than that of the first buckets
		if i >= len(e.params) || grads[i] == nil {
			continue
		}
		e.r.State(i).Write()
		scaled := slices.Clone(grads[i])
		for j := range scaled {
			scaled[j] *= e.r.Scale()
		}
		if err := write(dev, e.r.Grad(i), scaled); err != nil {
			return nil, err
		}
		e.r.Ready(i, dev.Compute().Mark())
	}
	if err := errors.Join(e.r.Finish(context.Background(), nil), e.r.Err()); err != nil {
		return nil, err
	}
	out := make([][]float64, len(e.params))
	for i := range out {
		out[i] = read(dev, e.r.Grad(i))
	}
	return out, nil
}

// random returns a rank's gradients for a pass.
func random(params []reducer.Param, rank, pass int) [][]float64 {
	rnd := rand.New(rand.NewPCG(uint64(rank), uint64(pass)))
	out := make([][]float64, len(params))
	for i, p := range params {
		out[i] = make([]float64, p.Shape.Len())
		for j := range out[i] {
			out[i][j] = rnd.NormFloat64()
		}
	}
	return out
}

// mean returns the averages of the gradients of all ranks.
func mean(params []reducer.Param, ranks int, of func(rank int) [][]float64) [][]float64 {
	sum := make([][]float64, len(params))
	for rank := range ranks {
		for i, g := range of(rank) {
			if sum[i] == nil {
				sum[i] = make([]float64, len(g))
			}
			for j, v := range g {
				sum[i][j] += v / float64(ranks)
			}
		}
	}
	return sum
}

// off returns the largest error of a gradient, relative to the largest wanted element or to 1,
// about the size of random gradients.
func off(got, want []float64) float64 {
	worst, most := 0., 1.
	for j, w := range want {
		worst, most = max(worst, math.Abs(got[j]-w)), max(most, math.Abs(w))
		if got[j] != got[j] {
			return math.NaN()
		}
	}
	return worst / most
}
