package optim_test

import (
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// holder is a module with given parameters and buffers.
type holder struct {
	params  []*nn.Parameter
	buffers []*nn.Buffer
}

func (holder) Forward(x *autograd.Variable) *autograd.Variable { return x }
func (h holder) Parameters() []*nn.Parameter                   { return h.params }
func (h holder) Buffers() []*nn.Buffer                         { return h.buffers }

// averaged returns the values of v within With.
func averaged(t *testing.T, e *optim.EMA, v *autograd.Variable) (x []float64) {
	t.Helper()
	if err := e.With(func() error {
		x = read(t, v)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return x
}

// The parameters of a base model have no averages.
func TestEMAOfAdapters(t *testing.T) {
	dev := newDevice(t)
	base, adapter := parameter(dev, "base", []float64{1}), parameter(dev, "adapter", []float64{2})
	nn.FreezeBase(holder{params: []*nn.Parameter{base}})
	opt := must.New(optim.NewSGD([]*nn.Parameter{adapter}, &optim.SGDOptions{LR: 1}))
	e := must.New(optim.NewEMA(holder{params: []*nn.Parameter{base, adapter}}, opt, nil))
	for _, b := range must.New(e.State()) {
		if b.Name() != "adapter.average" {
			t.Errorf("the state has %s", b.Name())
		}
	}
}

// The averages follow the formula after each committed step. Frozen parameters and buffers are
// copied. After With the original values are back.
func TestEMA(t *testing.T) {
	const decay, lr = 0.75, 0.5
	dev := newDevice(t)
	shared := autograd.FromSlice(dev, []float64{1, -2})
	w, again := nn.NewParameter("w", shared), nn.NewParameter("again", shared)
	frozen := parameter(dev, "frozen", []float64{0.1})
	frozen.Freeze()
	count := nn.NewBuffer("count", autograd.FromSlice(dev, []int64{0}))
	m := holder{[]*nn.Parameter{w, again, frozen}, []*nn.Buffer{count}}
	opt := must.New(optim.NewSGD([]*nn.Parameter{w}, &optim.SGDOptions{LR: lr}))
	e := must.New(optim.NewEMA(m, opt, &optim.EMAOptions{Decay: decay}))
	owned := &owner{t: device.HostTensor([]float64{1, -1}, device.Invalid)}
	owned.own(shared)
	near(t, "without an update", averaged(t, e, shared), []float64{1, -2})

	values, want := []float64{1, -2}, []float64{0, 0}
	for step := range 5 {
		owned.err = nil
		if step == 2 {
			owned.err = errors.New("rank 3 has no gradient")
		}
		held := 0.1 * float64(1+step)
		device.Elements[int64](count.Var().Tensor())[0] = int64(step)
		device.Elements[float64](frozen.Var().Tensor())[0] = held
		if err := opt.Step(); !errors.Is(err, owned.err) {
			t.Fatalf("step %d: %v", step, err)
		}
		if _, whole := e.Committed(); whole != (owned.err != nil) {
			t.Errorf("step %d: before Update the averages are taken for whole: %v", step, whole)
		}
		for range 2 { // the second Update changes nothing
			if err := e.Update(); err != nil {
				t.Fatal(err)
			}
		}
		if owned.err == nil {
			for i, g := range []float64{1, -1} {
				if values[i] -= lr * g; step == 0 {
					want[i] = values[i]
				} else {
					want[i] = decay*want[i] + (1-decay)*values[i]
				}
			}
		}
		if n, whole := e.Committed(); n != steps(opt) || !whole {
			t.Errorf("step %d: committed %d, whole: %v", step, n, whole)
		}
		near(t, "averages", averaged(t, e, shared), want)
		near(t, "parameters after With", read(t, shared), values)
		if step != 2 {
			near(t, "frozen", averaged(t, e, frozen.Var()), []float64{held})
			near(t, "buffer", averaged(t, e, count.Var()), []float64{float64(step)})
		}
	}
	state, err := e.State()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, b := range state {
		names = append(names, b.Name())
	}
	if want := []string{"w.average", "frozen.average", "count.average"}; !slices.Equal(names, want) {
		t.Errorf("the state has %q, want %q", names, want)
	}
	frozen.Unfreeze()
	device.Elements[float64](frozen.Var().Tensor())[0] = 0.9
	if err := errors.Join(opt.Step(), e.Update()); err != nil {
		t.Fatal(err)
	}
	near(t, "unfrozen", averaged(t, e, frozen.Var()), []float64{decay*0.5 + (1-decay)*0.9})
}

// Within With, Committed returns false, and Step and Update return errors. With returns the error
// of f.
func TestEMAWith(t *testing.T) {
	dev := newDevice(t)
	p := parameter(dev, "p", []float64{1})
	opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 1, Momentum: 0.5}))
	e := must.New(optim.NewEMA(holder{params: []*nn.Parameter{p}}, opt, &optim.EMAOptions{Decay: 0.5}))
	step := func() {
		t.Helper()
		opt.ZeroGrad()
		give(t, p, []float64{1})
		if err := errors.Join(opt.Step(), e.Update()); err != nil {
			t.Fatal(err)
		}
	}
	step() // afterwards: p 0, velocity 1, average 0
	step() // afterwards: p -1.5, velocity 1.5, average -0.75
	failed := errors.New("the evaluation failed")
	for _, with := range []func(f func() error) error{
		func(f func() error) error { return e.With(f) },
		func(f func() error) (err error) {
			defer func() { err = recover().(error) }()
			e.With(func() error { panic(f()) })
			return nil
		},
	} {
		err := with(func() error {
			if p.Item() != -0.75 {
				t.Errorf("within With the parameter is %v, want -0.75", p.Item())
			}
			if opt.Step() == nil || e.Update() == nil || e.With(func() error { return nil }) == nil {
				t.Error("Step, Update or With works within With")
			}
			if _, whole := opt.Committed(); whole {
				t.Error("the optimizer says that averages are its parameters")
			}
			if _, whole := e.Committed(); whole {
				t.Error("and so do the averages")
			}
			return failed
		})
		if err != failed || p.Item() != -1.5 {
			t.Errorf("With returned %v and left %v, want %v and -1.5", err, p.Item(), failed)
		}
	}
	step()
	if got := p.Item(); got != -1.5-(0.75+1) {
		t.Errorf("the next step leads to %v, want -3.25: the velocity is lost", got)
	}
}

// With does not change the optimizer's state: a parameter that had no gradient before With starts
// afterwards as it would have without it.
func TestEMAWithBeforeAFirstGradient(t *testing.T) {
	for _, with := range []bool{false, true} {
		dev := newDevice(t)
		a, _ := typed(t, dev, "a", device.BFloat16, device.BFloat16, 0)
		b, late := typed(t, dev, "b", device.BFloat16, device.BFloat16, 0)
		gradsink.Set(b.Var(), nil, nil)
		opt := must.New(optim.NewSGD([]*nn.Parameter{a, b}, &optim.SGDOptions{LR: 1, Momentum: 0.5, Dampening: 0.5, MasterWeights: true}))
		e := must.New(optim.NewEMA(holder{params: []*nn.Parameter{a, b}}, opt, nil))
		if err := errors.Join(opt.Step(), e.Update()); err != nil {
			t.Fatal(err)
		}
		if _, err := e.State(); err != nil { // as a program does to save the state
			t.Fatal(err)
		}
		if with {
			if err := e.With(func() error { return nil }); err != nil {
				t.Fatal(err)
			}
		}
		put(t, dev, b.Var().Tensor(), 5)
		put(t, dev, late.t, 1)
		late.own(b.Var())
		if err := opt.Step(); err != nil || b.Item() != 4 {
			t.Errorf("with averages in between: %v: the first step, by an undamped 1, went from 5 to %v, %v", with, b.Item(), err)
		}
	}
}

// The averages start with the values after the first step, even if the program asked for State
// before, as the end of ddp.Model.Join does. After a restored step 0 they start anew.
func TestEMABeginsWithTheFirstStep(t *testing.T) {
	dev := newDevice(t)
	p := parameter(dev, "p", []float64{100})
	opt := must.New(optim.NewSGD([]*nn.Parameter{p}, &optim.SGDOptions{LR: 1}))
	e := must.New(optim.NewEMA(holder{params: []*nn.Parameter{p}}, opt, nil))
	for _, pretrained := range []float64{1, 2} {
		if state, err := e.State(); err != nil || state[0].Var().Item() != p.Item() {
			t.Fatalf("the state is %v, %v, want the average to be %v", state, err, p.Item())
		}
		e.EndLoad(0)
		put(t, dev, p.Var().Tensor(), pretrained)
		near(t, "averages before the first", averaged(t, e, p.Var()), []float64{pretrained})
		if state, err := e.State(); err != nil || state[0].Var().Item() != pretrained {
			t.Fatalf("the state is %v, %v, want the average to be %v", state, err, pretrained)
		}
		put(t, dev, p.Var().Tensor(), pretrained+0.5)
		give(t, p, []float64{0.5})
		if err := errors.Join(opt.Step(), e.Update()); err != nil {
			t.Fatal(err)
		}
		near(t, "averages after it", averaged(t, e, p.Var()), []float64{pretrained})
		opt.ZeroGrad()
	}
}

// Averages of 16-bit parameters keep changes that are smaller than the type's precision.
func TestEMAOfHalves(t *testing.T) {
	dev := newDevice(t)
	buf, err := dev.Alloc(2)
	if err != nil {
		t.Fatal(err)
	}
	x := device.NewTensor(buf, device.BFloat16, 1)
	set := func(v float64) {
		if err := dev.Kernels().Fill(dev.Compute(), x, v); err != nil {
			t.Fatal(err)
		}
	}
	set(1)
	p := nn.NewParameter("p", autograd.FromTensor(dev, x))
	opt := must.New(optim.NewSGD(nil, nil))
	e := must.New(optim.NewEMA(holder{params: []*nn.Parameter{p}}, opt, nil))
	for step := range 1001 {
		opt.EndLoad(step + 1) // as if it had committed a step
		if err := e.Update(); err != nil {
			t.Fatal(err)
		}
		set(2)
	}
	want := 2 - math.Pow(0.999, 1000)
	if got := averaged(t, e, p.Var())[0]; math.Abs(got-want) > 1.0/128 {
		t.Errorf("the average of 1 and many 2s is %v, want %v", got, want)
	}
	if p.Item() != 2 {
		t.Errorf("With left %v, want 2", p.Item())
	}
}

// broken is a device whose n-th kernel call or allocation fails.
type broken struct {
	device.Device
	values         kernels.Values
	kernel, memory int // the number of calls until one fails; 0: none fails
}

var errBroken = errors.New("broken")

func (b *broken) Values() *kernels.Values { return &b.values }
func (b *broken) Kernels() device.Kernels { return brokenKernels{kernels.Of(b.Device), b} }
func (b *broken) Alloc(n int) (device.Buffer, error) {
	if err := count(&b.memory); err != nil {
		return device.Buffer{}, err
	}
	return b.Device.Alloc(n)
}

func count(n *int) error {
	if *n > 0 {
		if *n--; *n == 0 {
			return errBroken
		}
	}
	return nil
}

type brokenKernels struct {
	kernels.Kernels
	b *broken
}

func (k brokenKernels) Copy(s device.Stream, dst, src device.Tensor) error {
	if err := count(&k.b.kernel); err != nil {
		return err
	}
	return k.Kernels.Copy(s, dst, src)
}

func (k brokenKernels) Axpby(s device.Stream, dst device.Tensor, acc device.Accum, x device.Tensor) error {
	if err := count(&k.b.kernel); err != nil {
		return err
	}
	return k.Kernels.Axpby(s, dst, acc, x)
}

// After each possible failure, Committed returns true only if the parameters and the state are
// consistent.
func TestEMAFailures(t *testing.T) {
	setup := func() (*broken, []*nn.Parameter, *optim.SGD, *optim.EMA) {
		dev := &broken{Device: newDevice(t)}
		ps := []*nn.Parameter{parameter(dev, "a", []float64{1}), parameter(dev, "b", []float64{2})}
		opt := must.New(optim.NewSGD(nil, nil))
		e := must.New(optim.NewEMA(holder{params: ps}, opt, &optim.EMAOptions{Decay: 0.5}))
		opt.EndLoad(1)
		return dev, ps, opt, e
	}
	dev, ps, opt, e := setup()
	dev.memory = 2
	if err := e.Update(); !errors.Is(err, errBroken) {
		t.Errorf("without memory for the averages: %v", err)
	}
	if err := e.Update(); err != nil {
		t.Fatal(err)
	}
	use := dev.Memory().InUse
	dev.memory = 2
	if err := e.With(func() error { return errors.New("f is called") }); !errors.Is(err, errBroken) || dev.Memory().InUse != use {
		t.Errorf("without memory for copies: %v, %d bytes in use, want %d", err, dev.Memory().InUse, use)
	}
	for nth := 1; nth <= 4; nth++ { // while With puts the averages in place
		dev.kernel = nth
		if err := e.With(func() error { return errors.New("f is called") }); !errors.Is(err, errBroken) {
			t.Errorf("kernel %d failed: %v", nth, err)
		}
		if _, whole := e.Committed(); !whole || ps[0].Item() != 1 || ps[1].Item() != 2 {
			t.Errorf("kernel %d failed: whole: %v, parameters %v and %v", nth, whole, ps[0].Item(), ps[1].Item())
		}
	}
	dev.kernel = 6 // while With puts the parameters back
	if err := e.With(func() error { return nil }); !errors.Is(err, errBroken) {
		t.Errorf("not put back: %v", err)
	}
	if _, whole := opt.Committed(); whole || e.Update() == nil || opt.Step() == nil {
		t.Error("with averages for parameters it goes on")
	}

	dev, _, opt, e = setup()
	if err := e.Update(); err != nil {
		t.Fatal(err)
	}
	opt.EndLoad(2)
	dev.kernel = 2
	if err := e.Update(); !errors.Is(err, errBroken) {
		t.Errorf("inconsistent averages: %v", err)
	}
	opt.EndLoad(1) // only on the optimizer, not on the EMA
	if _, whole := e.Committed(); whole || e.Update() == nil || e.With(func() error { return nil }) == nil {
		t.Error("with inconsistent averages it goes on")
	}
	if e.EndLoad(2); e.Update() != nil {
		t.Error("restored, it does not go on")
	}
}

// While the parameters are swapped the optimizer is inconsistent. When they are restored it is consistent
// again, unless another change made it inconsistent meanwhile.
func TestOptimizerIsInconsistentWhileParametersAreSwapped(t *testing.T) {
	dev := newDevice(t)
	opt := must.New(optim.NewSGD([]*nn.Parameter{parameter(dev, "p", []float64{1})}, &optim.SGDOptions{LR: 1}))
	consistent := func() bool {
		_, consistent := opt.Committed()
		return consistent && opt.Step() == nil
	}
	outer := opt.SwapParameters()
	inner := opt.SwapParameters()
	if inner(); consistent() {
		t.Error("consistent while the outer swap is not undone")
	}
	if outer(); !consistent() {
		t.Error("inconsistent although both swaps are undone")
	}
	back := opt.SwapParameters()
	opt.BeginLoad()
	if back(); consistent() {
		t.Error("consistent while a state is being loaded")
	}
	if opt.SwapParameters()(); consistent() {
		t.Error("a swap makes a state consistent whose loading did not end")
	}
	opt.EndLoad(0)
	if !consistent() {
		t.Error("inconsistent after the load ended")
	}
}
