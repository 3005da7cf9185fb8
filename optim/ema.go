package optim

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// Optimizer is what an [EMA] follows, such as [SGD]: see there for the methods.
type Optimizer interface {
	Committed() (steps int, whole bool)
	State() ([]*nn.Buffer, error)
	Restoring()
	Restored(steps int)
	Lend() (back func())
}

// EMAOptions are the choices of [NewEMA].
type EMAOptions struct {
	// Decay is the part of an average that an update keeps, below 1; 0: 0.999.
	Decay float64
}

// EMA is exponential moving averages of a module's parameters:
//
//	average = Decay·average + (1-Decay)·parameter
//
// after each step that the optimizer committed. They begin as the parameters are
// after the first. Averages of 16-bit floats are kept in Float32, where a small
// 1-Decay is not lost. Frozen parameters and buffers are not averaged but copied.
//
// It is itself an [Optimizer] in what it keeps: its State has the optimizer's
// and the averages, for saving both and for ddp.Recover. Like the optimizer it is
// driven by one goroutine, and any may ask for what is Committed.
type EMA struct {
	opt      Optimizer
	module   nn.Model
	decay    float64
	averages []*average   // nil before they are made
	begun    bool         // they are of steps; else the parameters are what counts
	steps    atomic.Int64 // committed, that the averages have taken in; -1 when they are torn
	err      error        // what Update and With return: the state is not whole
}

// average is one variable and its average.
type average struct {
	name  string
	v     *autograd.Variable
	param bool
	mean  *autograd.Variable
}

// NewEMA averages the parameters of m, which opt optimizes. It panics with an
// [*OptionError] when the options make no sense.
func NewEMA(m nn.Model, opt Optimizer, opts *EMAOptions) *EMA {
	e := &EMA{opt: opt, module: m, decay: 0.999}
	if opts != nil && opts.Decay != 0 {
		e.decay = opts.Decay
	}
	if !(e.decay > 0 && e.decay < 1) {
		panic(&OptionError{"Decay", e.decay, "above 0 and below 1"})
	}
	steps, _ := opt.Committed()
	e.steps.Store(int64(steps))
	return e
}

// Update takes the parameters into the averages, if the optimizer has committed
// a step since the last Update: it is called after each Step, and a step that
// was skipped does not count. It is enqueued on the device, and waits for
// nothing. An error that there is no memory changes nothing; after another one
// the averages are torn, and every further Update returns it until the program
// has restored a whole state.
func (e *EMA) Update() error {
	if e.err != nil {
		return e.err
	}
	steps, _ := e.opt.Committed()
	if int64(steps) == e.steps.Load() {
		return nil
	}
	if !e.begun {
		if err := e.begin(); err != nil {
			return err
		}
		e.begun = true
		e.steps.Store(int64(steps))
		return nil
	}
	scratch, free, err := e.scratch()
	if err != nil {
		return err
	}
	defer free()
	for _, a := range e.averages {
		if err := a.update(e.decay, scratch); err != nil {
			e.steps.Store(-1)
			e.err = fmt.Errorf("optim: averages of step %d are torn: %w", steps, err)
			return e.err
		}
	}
	e.steps.Store(int64(steps))
	return nil
}

// begin sets the averages to what the parameters and buffers are now.
func (e *EMA) begin() error {
	if e.averages == nil {
		if err := e.allocate(); err != nil {
			return err
		}
	}
	for _, a := range e.averages {
		a.mean.BumpVersion()
		if err := a.copy(a.mean.Tensor(), a.v.Tensor()); err != nil {
			return err
		}
	}
	return nil
}

// allocate makes the averages.
func (e *EMA) allocate() error {
	var all []*average
	seen := map[*autograd.Variable]bool{}
	add := func(name string, v *autograd.Variable, param bool) error {
		if seen[v] {
			return nil
		}
		seen[v] = true
		dt := v.DType()
		if dt.IsFloat() && dt.Size() == 2 {
			dt = device.Float32
		}
		mean := autograd.Zeros(v.Device(), dt, v.Shape()...).SetName(name + ".average")
		if err := mean.Err(); err != nil {
			return fmt.Errorf("optim: average of %s: %w", name, err)
		}
		all = append(all, &average{name, v, param, mean})
		return nil
	}
	for _, p := range e.module.Parameters() {
		if err := add(p.Name(), p.Var(), true); err != nil {
			return err
		}
	}
	for _, b := range nn.Buffers(e.module) {
		if err := add(b.Name(), b.Var(), false); err != nil {
			return err
		}
	}
	e.averages = all
	return nil
}

// scratch is memory for the largest parameter that has to be converted.
func (e *EMA) scratch() (buf device.Buffer, free func(), err error) {
	size := 0
	for _, a := range e.averages {
		if a.mean.DType() != a.v.DType() {
			size = max(size, a.mean.Tensor().Bytes())
		}
	}
	if size == 0 {
		return buf, func() {}, nil
	}
	dev := e.averages[0].v.Device()
	if buf, err = dev.Alloc(size); err != nil {
		return buf, nil, fmt.Errorf("optim: averages: %w", err)
	}
	return buf, func() { dev.Free(buf) }, nil
}

// update enqueues what takes the variable into its average.
func (a *average) update(decay float64, scratch device.Buffer) error {
	a.mean.BumpVersion()
	if !a.param || !a.v.RequiresGrad() {
		return a.copy(a.mean.Tensor(), a.v.Tensor())
	}
	dev, x, mean := a.v.Device(), a.v.Tensor(), a.mean.Tensor()
	k, s := dev.Kernels(), dev.Compute()
	if x.DType != mean.DType {
		wide := device.NewTensor(scratch, mean.DType, mean.Shape...)
		if err := k.Copy(s, wide, x); err != nil {
			return err
		}
		x = wide
	}
	return k.Axpby(s, mean, device.Accum{Alpha: 1 - decay, Beta: decay}, x)
}

// copy enqueues a copy of what belongs to the variable, with conversion.
func (a *average) copy(dst, src device.Tensor) error {
	dev := a.v.Device()
	if err := dev.Kernels().Copy(dev.Compute(), dst, src); err != nil {
		return fmt.Errorf("optim: copying %s: %w", a.name, err)
	}
	return nil
}

// With runs f with the averages in place of the parameters and buffers, for an
// evaluation or to save them, and puts those back. Both are in-place writes: a
// graph recorded before With, or within f, is stale afterwards. Before the first Update
// the parameters stay. Within f the optimizer's Step is an error, and what
// is Committed is not whole. With returns the error of f; that there is no memory
// for a copy of the parameters, or that a step is torn, before it calls f; or
// that they could not be put back, after which the state has to be restored.
func (e *EMA) With(f func() error) (err error) {
	if e.err != nil {
		return e.err
	}
	steps, whole := e.opt.Committed()
	if !whole {
		return fmt.Errorf("optim: the averages cannot take the place of parameters that are not whole, after step %d", steps)
	}
	saved, free, err := e.spare()
	if err != nil {
		return err
	}
	defer free()
	back := e.Lend()
	put := 0
	defer func() {
		if failed := e.putBack(saved[:put]); failed != nil {
			err = errors.Join(err, failed)
			return
		}
		back()
	}()
	for i := range saved {
		a := e.averages[i]
		if err := a.copy(saved[i], a.v.Tensor()); err != nil {
			return err
		}
		put++
		a.v.BumpVersion()
		if err := a.copy(a.v.Tensor(), a.mean.Tensor()); err != nil {
			return err
		}
	}
	return f()
}

// spare is memory for a copy of each variable that With replaces.
func (e *EMA) spare() (saved []device.Tensor, free func(), err error) {
	free = func() {
		for i, t := range saved {
			e.averages[i].v.Device().Free(t.Buf)
		}
	}
	if !e.begun {
		return nil, free, nil
	}
	for _, a := range e.averages {
		t := a.v.Tensor()
		buf, err := a.v.Device().Alloc(t.Bytes())
		if err != nil {
			free()
			return nil, nil, fmt.Errorf("optim: a copy of %s: %w", a.name, err)
		}
		saved = append(saved, device.NewTensor(buf, t.DType, t.Shape...))
	}
	return saved, free, nil
}

// putBack sets the first variables to what was saved of them.
func (e *EMA) putBack(saved []device.Tensor) error {
	for i, t := range saved {
		a := e.averages[i]
		a.v.BumpVersion()
		if err := a.copy(a.v.Tensor(), t); err != nil {
			return err
		}
	}
	return nil
}

// Committed is the optimizer's, and not whole before Update has taken the last
// step into the averages.
func (e *EMA) Committed() (steps int, whole bool) {
	steps, whole = e.opt.Committed()
	return steps, whole && e.steps.Load() == int64(steps)
}

// State is the optimizer's and the averages, as "NAME.average". Before the first
// Update these are what the parameters and buffers are now, each time.
func (e *EMA) State() ([]*nn.Buffer, error) {
	state, err := e.opt.State()
	if err != nil {
		return nil, err
	}
	if !e.begun {
		if err := e.begin(); err != nil {
			return nil, err
		}
	}
	for _, a := range e.averages {
		state = append(state, nn.NewBuffer(a.mean.Name(), a.mean))
	}
	return state, nil
}

// Restoring says that the program is about to write the parameters, or what
// State returned: see [SGD.Restoring].
func (e *EMA) Restoring() {
	e.err = errors.New("optim: the averages are being restored, or that failed")
	e.opt.Restoring()
}

// Restored says that these are whole again: see [SGD.Restored]. After no step, the
// averages begin anew; after one or more they count as begun.
func (e *EMA) Restored(steps int) {
	e.opt.Restored(steps)
	e.err = nil
	e.begun = steps > 0 && e.averages != nil
	e.steps.Store(int64(steps))
}

// Lend says that other numbers take the place of the parameters: see [SGD.Lend].
func (e *EMA) Lend() (back func()) {
	opt := e.opt.Lend()
	before, lent := e.err, errors.New("optim: other numbers are in the place of the parameters, or these could not be put back")
	e.err = lent
	return func() {
		if e.err == lent { // else they were torn, or restored, since
			e.err = before
		}
		opt()
	}
}
