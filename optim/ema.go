package optim

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/nn"
)

// EMAOptions are the options of [NewEMA].
type EMAOptions struct {
	// Decay is the fraction of an average that an update keeps, above 0 and below 1; 0 means 0.999.
	Decay float64
}

// EMA keeps exponential moving averages of a module's parameters:
//
//	average = Decay·average + (1-Decay)·parameter
//
// after each step that the optimizer commits. After the first step the averages equal the
// parameters. Averages of 16-bit floats are kept in Float32, in which a small 1-Decay is not lost.
// Frozen parameters and buffers are copied, not averaged. Parameters of a base model ([nn.FreezeBase]) are left out.
//
// An EMA is an [Optimizer]: it wraps the one that updates the parameters, and its State contains the state of that
// optimizer and the averages, for saving and for other ranks. Only Committed may be called from several goroutines.
type EMA struct {
	Optimizer // the optimizer of the parameters
	module    nn.Model
	decay     float64
	averages  []*average   // nil before they are allocated
	isStarted bool         // the averages include a step
	steps     atomic.Int64 // the committed steps that the averages include; -1 if the averages are inconsistent
	err       error        // the error that Update and With return until a state is loaded; nil: none
}

// average is one parameter or buffer and its average.
type average struct {
	name  string
	v     *autograd.Variable // of a parameter that is divided among ranks, this rank's part
	mean  *autograd.Variable
	param *nn.Parameter // nil for a buffer
	span  *nn.Span      // which elements v has of a divided parameter; else nil
}

// NewEMA returns averages of the parameters of m, which opt updates. It returns an [*OptionError] if Decay is out of
// range.
func NewEMA(m nn.Model, opt Optimizer, opts *EMAOptions) (*EMA, error) {
	e := &EMA{Optimizer: opt, module: m, decay: 0.999}
	if opts != nil && opts.Decay != 0 {
		e.decay = opts.Decay
	}
	if !(e.decay > 0 && e.decay < 1) {
		return nil, &OptionError{"Decay", e.decay, "above 0 and below 1"}
	}
	steps, _ := opt.Committed()
	e.steps.Store(int64(steps))
	return e, nil
}

// Step makes a step of the optimizer, then calls Update.
func (e *EMA) Step() error {
	if err := e.Optimizer.Step(); err != nil {
		return err
	}
	return e.Update()
}

// SetLR sets the learning rate of the optimizer. It panics if the optimizer is not an [LRSetter].
func (e *EMA) SetLR(lr float64) { e.Optimizer.(LRSetter).SetLR(lr) }

// KeepLR returns a function that restores the optimizer's current learning rates. The function does nothing if the
// optimizer is not an [LRKeeper].
func (e *EMA) KeepLR() (restore func()) {
	if k, ok := e.Optimizer.(LRKeeper); ok {
		return k.KeepLR()
	}
	return func() {}
}

// ClipGradNorm calls the optimizer's method ClipGradNorm if there is one. The optimizer of ddp/zero has one, because
// its gradients are sharded. Otherwise it calls the function [ClipGradNorm].
func (e *EMA) ClipGradNorm(max float64, opts *ClipOptions) (norm *autograd.Variable, err error) {
	if o, ok := e.Optimizer.(interface {
		ClipGradNorm(max float64, opts *ClipOptions) (*autograd.Variable, error)
	}); ok {
		return o.ClipGradNorm(max, opts)
	}
	return ClipGradNorm(e.Parameters(), max, opts)
}

// Update includes the current parameters in the averages, if the optimizer has committed a step since the last
// Update. A program that steps the optimizer itself, for example through a loss scaler, must call Update after each
// step. Update only enqueues work on the device. If there is too little memory, Update changes nothing. After any
// other error the averages are inconsistent, and Update returns the same error until the program has loaded a state.
func (e *EMA) Update() error {
	if e.err != nil {
		return e.err
	}
	for _, p := range e.Optimizer.Parameters() {
		if r := capture.Of(p.Var().Device()); r != nil {
			return r.Refuse("EMA passes numbers from the host to its kernels: call Step of its optimizer within the step, and Update outside")
		}
	}
	steps, _ := e.Optimizer.Committed()
	if int64(steps) == e.steps.Load() {
		return nil
	}
	if e.outdated(); e.err != nil {
		return e.err
	}
	if !e.isStarted {
		if err := e.start(); err != nil {
			return err
		}
		e.isStarted = true
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
			e.err = fmt.Errorf("optim: the averages of step %d are inconsistent: %w", steps, err)
			return e.err
		}
	}
	e.steps.Store(int64(steps))
	return nil
}

// outdated drops the averages if the ranks have divided the parameters anew since they were made. The program must then
// load a state.
func (e *EMA) outdated() {
	if slices.ContainsFunc(e.averages, func(a *average) bool {
		return a.span != nil && a.param.Part() != nil && a.param.Part().Var() != a.v
	}) {
		e.err = errors.New("optim: the averages were lost when the ranks divided the parameters anew: load a state")
		e.averages, e.isStarted = nil, false
		e.steps.Store(-1)
	}
}

// start sets the averages to the current parameters and buffers.
func (e *EMA) start() error {
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

// allocate allocates the averages.
func (e *EMA) allocate() error {
	var all []*average
	seen := map[*autograd.Variable]bool{}
	add := func(name string, v *autograd.Variable, param *nn.Parameter, span *nn.Span) error {
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
		all = append(all, &average{name, v, mean, param, span})
		return nil
	}
	for _, p := range e.module.Parameters() {
		if p.IsBase() { // it stays as it is
			continue
		}
		v, span := p.Var(), (*nn.Span)(nil)
		if b := p.Part(); b != nil {
			s, _ := b.Span()
			v, span = b.Var(), &s
		}
		if err := add(p.Name(), v, p, span); err != nil {
			return err
		}
	}
	for _, b := range nn.Buffers(e.module) {
		if err := add(b.Name(), b.Var(), nil, nil); err != nil {
			return err
		}
	}
	e.averages = all
	return nil
}

// scratch allocates memory for the largest parameter that must be converted. The caller must call free.
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

// update enqueues the update of one average.
func (a *average) update(decay float64, scratch device.Buffer) error {
	a.mean.BumpVersion()
	if a.param == nil || !a.v.RequiresGrad() {
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

// written counts a write to v, and to the parameter that v is a part of.
func (a *average) written() {
	a.v.BumpVersion()
	if a.span != nil {
		a.param.Var().BumpVersion()
	}
}

// copy enqueues a copy from src to dst, with conversion.
func (a *average) copy(dst, src device.Tensor) error {
	dev := a.v.Device()
	if err := dev.Kernels().Copy(dev.Compute(), dst, src); err != nil {
		return fmt.Errorf("optim: copying %s: %w", a.name, err)
	}
	return nil
}

// With calls f with the parameters and buffers replaced by their averages, for an evaluation or to save them.
// Afterwards it restores the originals. Both count as in-place writes: a graph that was recorded before With, or
// within f, cannot run backward afterwards. Before the first Update f sees the original parameters. Within f, Step
// returns an error and Committed returns false.
//
// With returns the error of f. It returns an error without calling f if there is too little memory for a copy of the
// parameters, if the parameters are inconsistent, or if the optimizer is not a [ParameterSwapper]. If the originals
// cannot be restored, With returns an error and the program must load a state.
func (e *EMA) With(f func() error) (err error) {
	if e.outdated(); e.err != nil {
		return e.err
	}
	if slices.ContainsFunc(e.averages, func(a *average) bool { return a.span != nil && a.param.Part() == nil }) {
		return errors.New("optim: the averages of parts cannot replace parameters that are whole at the moment: call Whole of the model within With")
	}
	steps, consistent := e.Optimizer.Committed()
	if !consistent {
		return fmt.Errorf("optim: the averages cannot replace the parameters: they are inconsistent after step %d", steps)
	}
	swapper, ok := e.Optimizer.(ParameterSwapper)
	if !ok {
		return fmt.Errorf("optim: the averages cannot replace the parameters: %T does not implement ParameterSwapper", e.Optimizer)
	}
	saved, free, err := e.allocateCopies()
	if err != nil {
		return err
	}
	defer free()
	restored := e.swap(swapper)
	replaced := 0
	defer func() {
		if failed := e.putBack(saved[:replaced]); failed != nil {
			err = errors.Join(err, failed)
			return
		}
		restored()
	}()
	for i := range saved {
		a := e.averages[i]
		if err := a.copy(saved[i], a.v.Tensor()); err != nil {
			return err
		}
		replaced++
		a.written()
		if err := a.copy(a.v.Tensor(), a.mean.Tensor()); err != nil {
			return err
		}
	}
	return f()
}

// allocateCopies allocates memory for a copy of each variable that With replaces. The caller must call free.
func (e *EMA) allocateCopies() (saved []device.Tensor, free func(), err error) {
	free = func() {
		for i, t := range saved {
			e.averages[i].v.Device().Free(t.Buf)
		}
	}
	if !e.isStarted {
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

// putBack copies the saved values back to the first len(saved) variables.
func (e *EMA) putBack(saved []device.Tensor) error {
	for i, t := range saved {
		a := e.averages[i]
		a.written()
		if err := a.copy(a.v.Tensor(), t); err != nil {
			return err
		}
	}
	return nil
}

// Committed returns the number of committed steps of the optimizer. consistent is true if the optimizer is
// consistent and the averages include its last step.
func (e *EMA) Committed() (steps int, consistent bool) {
	steps, consistent = e.Optimizer.Committed()
	return steps, consistent && e.steps.Load() == int64(steps)
}

// State returns the state of the optimizer, and the averages, named "NAME.average". Before the first
// Update each call sets the averages to the current parameters and buffers.
func (e *EMA) State() ([]*nn.Buffer, error) {
	state, err := e.Optimizer.State()
	if err != nil {
		return nil, err
	}
	if e.outdated(); !e.isStarted {
		if err := e.start(); err != nil {
			return nil, err
		}
	}
	for _, a := range e.averages {
		b := nn.NewBuffer(a.mean.Name(), a.mean)
		if a.span != nil {
			b = b.Divided(*a.span)
		}
		state = append(state, b)
	}
	return state, nil
}

// BeginLoad announces that the caller is going to write the parameters, or the variables that State
// returned: see [Optimizer].
func (e *EMA) BeginLoad() {
	e.err = errors.New("optim: the averages cannot be used: they are being loaded, or loading them failed")
	e.Optimizer.BeginLoad()
}

// EndLoad announces that parameters, state and averages are those after the given number of steps: see [Optimizer].
// With 0 steps the averages restart.
func (e *EMA) EndLoad(steps int) {
	e.Optimizer.EndLoad(steps)
	e.err = nil
	e.isStarted = steps > 0 && e.averages != nil
	e.steps.Store(int64(steps))
}

// swap announces to the optimizer that the parameters are replaced. Until the caller calls restored,
// Update and With return an error too.
func (e *EMA) swap(swapper ParameterSwapper) (restored func()) {
	optRestored := swapper.SwapParameters()
	before, swapped := e.err, errors.New("optim: the parameters are swapped for other values, or the original values could not be restored")
	e.err = swapped
	return func() {
		if e.err == swapped { // otherwise a state was loaded in the meantime
			e.err = before
		}
		optRestored()
	}
}
