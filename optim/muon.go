package optim

import (
	"fmt"
	"math"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// MuonOptions are the options of [NewMuon]. The rule for a matrix W with the gradient G is that of
// torch.optim.Muon:
//
//	V = Momentum·V + (1-Momentum)·G
//	U = (1-Momentum)·G + Momentum·V    (with NoNesterov: U = V)
//	W = (1 - LR·WeightDecay)·W - LR·scale·O
//
// O is U with all singular values moved close to 1, by five Newton–Schulz iterations (Jordan et al.,
// "Muon: An optimizer for hidden layers in neural networks", 2024). They start with
// X = U/max(‖U‖, 1e-7):
//
//	A = X·Xᵀ,  X = 3.4445·X + (-4.7750·A + 2.0315·A²)·X
//
// A parameter with more than two axes, such as the kernel of a convolution, is treated as a
// matrix with one row for each element of its first axis. The iterations run in Float32, or in Float64
// for Float64 parameters; PyTorch runs them in BFloat16.
type MuonOptions struct {
	// LR is the learning rate, 0 or more. With 0 the matrices do not change. PyTorch's default is
	// 0.001.
	LR float64
	// Momentum is the fraction of the velocity that a step keeps, below 1. If it is 0 and NoDefaults
	// is not set, it is 0.95.
	Momentum float64
	// NoDefaults uses Momentum even if it is 0.
	NoDefaults bool
	// NoNesterov uses the velocity itself, without Nesterov momentum.
	NoNesterov bool
	// WeightDecay times LR is the fraction of a parameter that a step subtracts.
	// PyTorch's default is 0.1.
	WeightDecay float64
	// MatchRMS sets scale to 0.2·√max(rows, columns). Steps are then about as large as AdamW's, so
	// that the values of LR and WeightDecay for AdamW can be used. Without MatchRMS scale is √max(1, rows/columns).
	MatchRMS bool
	// MasterWeights keeps a Float32 copy of every 16-bit parameter: see [SGDOptions].
	MasterWeights bool
}

// The coefficients of a Newton–Schulz iteration, the number of iterations, and the smallest norm by
// which a matrix is divided.
const (
	newtonSchulzX   = 3.4445
	newtonSchulzA   = -4.7750
	newtonSchulzAA  = 2.0315
	newtonSchulzes  = 5
	newtonSchulzEps = 1e-7
)

func (o *MuonOptions) rate() *float64 { return &o.LR }

func (o *MuonOptions) check() error {
	if !(o.Momentum < 1) {
		return &OptionError{"Momentum", o.Momentum, "less than 1"}
	}
	return checkNotNegative([]string{"LR", "Momentum", "WeightDecay"}, o.LR, o.Momentum, o.WeightDecay)
}

// momentum returns Momentum, with the default filled in.
func (o *MuonOptions) momentum() float64 {
	if o.Momentum == 0 && !o.NoDefaults {
		return 0.95
	}
	return o.Momentum
}

// scale returns the factor of a matrix's step, in addition to LR.
func (o *MuonOptions) scale(rows, columns int) float64 {
	if o.MatchRMS {
		return 0.2 * math.Sqrt(float64(max(rows, columns)))
	}
	return math.Sqrt(max(1, float64(rows)/float64(columns)))
}

// MuonGroup is a group of matrices that share options. The caller may change the options between
// steps, but not the parameters.
type MuonGroup struct {
	Params []*nn.Parameter
	MuonOptions
	hasMaster bool // MasterWeights when the optimizer was made
}

// Muon orthogonalizes each step, so that a step is equally large in all directions of a matrix. It is for
// the weights of hidden layers. Other parameters (vectors, embeddings and the last layer) are in separate
// groups, which use [AdamW]'s rule. Its State has the velocities of the matrices, named "NAME.velocity", and
// the state of AdamW for the other parameters. Only Committed may be called from several goroutines.
//
// The rule needs whole matrices. [Muon.Divide] divides the work among ranks that have the same matrices, and
// [Muon.DivideParts] among ranks that have parts of them; package ddp/zero calls it.
type Muon struct {
	optimizer
	updatesParts
	groups[*MuonGroup]
	rest     []*AdamWGroup
	scratch  map[device.DType]*autograd.Variable // memory for one matrix at a time, by type
	division *division                           // nil: this process orthogonalizes all matrices
}

// NewMuon returns an optimizer for matrices with the options opts, and for the parameters of rest, which use
// AdamW's rule. It handles tied weights and returns errors as [NewSGD] does, and returns an [*OptionError]
// if a matrix has fewer than two axes.
func NewMuon(matrices []*nn.Parameter, opts *MuonOptions, rest ...AdamWGroup) (*Muon, error) {
	group := MuonGroup{Params: matrices}
	if opts != nil {
		group.MuonOptions = *opts
	}
	return NewMuonGroups([]MuonGroup{group}, rest...)
}

// NewMuonGroups is NewMuon for several groups of matrices with their own options.
func NewMuonGroups(matrices []MuonGroup, rest ...AdamWGroup) (*Muon, error) {
	o := &Muon{scratch: map[device.DType]*autograd.Variable{}}
	for _, group := range matrices {
		g := &group
		g.hasMaster = g.MasterWeights
		if err := g.check(); err != nil {
			return nil, err
		}
		for _, p := range g.Params {
			if len(p.Shape()) < 2 {
				return nil, &OptionError{"Params", p, "matrices, of two axes or more"}
			}
		}
		if err := o.add(g.Params, func() rule { return &muonRule{muon: o, group: g} }); err != nil {
			return nil, err
		}
		o.all = append(o.all, g)
	}
	for _, group := range rest {
		if err := o.addAdamW(&group); err != nil {
			return nil, err
		}
		o.rest = append(o.rest, &group)
	}
	return o, nil
}

// Rest returns the groups of the other parameters. The caller may change their options between
// steps. SetLR does not change their learning rates.
func (o *Muon) Rest() []*AdamWGroup { return o.rest }

// wideType returns the type in which matrices of type dt are orthogonalized.
func wideType(dt device.DType) device.DType {
	if dt == device.Float64 {
		return dt
	}
	return device.Float32
}

// matrix returns the rows and columns of a parameter of this shape.
func matrix(shape device.Shape) (rows, columns int) { return shape[0], shape[1:].Len() }

// workspace is the scratch memory for one matrix. u and next have the matrix's shape; gram and update are square,
// with the size of the matrix's shorter side; norm is a scalar.
type workspace struct{ u, next, gram, update, norm device.Tensor }

// workspaceLen returns the number of elements in the workspace of a matrix.
func workspaceLen(rows, columns int) int {
	side := min(rows, columns)
	return 2*rows*columns + 2*side*side + 1
}

// workspace returns the workspace of a matrix: views of the scratch memory that allocate made.
func (o *Muon) workspace(dt device.DType, shape device.Shape) workspace {
	rows, columns := matrix(shape)
	flat, at := o.scratch[dt].Tensor(), 0
	cut := func(shape ...int) device.Tensor {
		n := device.Shape(shape).Len()
		at += n
		return flat.Range(at-n, at).Reshape(shape...)
	}
	side := min(rows, columns)
	return workspace{cut(rows, columns), cut(rows, columns), cut(side, side), cut(side, side), cut()}
}

// muonRule is the rule of Muon for one matrix. The velocity begins as zeros, so that the first step
// needs no special case.
type muonRule struct {
	muon     *Muon
	group    *MuonGroup
	velocity *autograd.Variable // Float32 or Float64; nil before the first step
}

func (r *muonRule) check() error {
	if err := checkUnchanged("MasterWeights", r.group.MasterWeights, r.group.hasMaster); err != nil {
		return err
	}
	return r.group.check()
}

func (r *muonRule) hasMaster() bool { return r.group.hasMaster }

func (r *muonRule) allocate(s *slot, dt device.DType) (err error) {
	dt = wideType(dt)
	if r.velocity == nil {
		if r.velocity, err = s.zeros("velocity", dt, s.Var().Shape()...); err != nil {
			r.velocity = nil
			return err
		}
	}
	n := workspaceLen(matrix(s.Shape()))
	if have := r.muon.scratch[dt]; have == nil || have.Shape().Len() < n {
		made := autograd.Zeros(s.Var().Device(), dt, n)
		if err := made.Err(); err != nil {
			return fmt.Errorf("allocating scratch memory for %s: %w", s.Name(), err)
		}
		r.muon.scratch[dt] = made
	}
	return nil
}

func (r *muonRule) update(s *slot, scaled Scaled, _ *batch) error {
	v := s.Var()
	if scaled.capturing != nil {
		return scaled.capturing.Refuse("Muon passes numbers from the host to its kernels")
	}
	if v.Shape().Len() == 0 {
		return nil
	}
	k, stream := kernels.Of(v.Device()), v.Device().Compute()
	w := r.muon.workspace(r.velocity.DType(), s.Shape())
	if d := r.muon.division; d != nil {
		return r.accelerate(k, stream, s, scaled, d.matrices[s].Part, w.next.Flat().Range(0, v.Shape().Len()))
	}
	if err := r.accelerate(k, stream, s, scaled, w.u.Flat(), w.next.Flat()); err != nil {
		return err
	}
	o, scratch, err := w.orthogonalize(k, stream)
	if err != nil {
		return err
	}
	return r.apply(s, o, scratch, s.skip(), scaled.Overflow)
}

// accelerate updates the velocity and sets u to the step before it is orthogonalized. u and scratch have as many elements
// as the parameter.
func (r *muonRule) accelerate(k kernels.Kernels, stream device.Stream, s *slot, scaled Scaled, u, scratch device.Tensor) error {
	beta, g := r.group.momentum(), s.grad.Flat()
	if g.DType != scratch.DType {
		if err := k.Copy(stream, scratch, g); err != nil {
			return err
		}
		g = scratch
	}
	// SGD's kernel with LR -1 on u = 0 updates the velocity and copies it to u, unless the step is skipped.
	err := k.Fill(stream, u, 0)
	if err == nil {
		err = k.SGD(stream, kernels.SGDStep{
			Param: u, Grad: g, Velocity: r.velocity.Tensor().Flat(),
			Skip: s.skip(), LossScale: scaled.LossScale, Overflow: scaled.Overflow,
			LR: -1, Momentum: beta, Dampening: beta,
		})
	}
	if err != nil || r.group.NoNesterov || beta == 0 {
		return err
	}
	acc := device.Accum{Alpha: 1 - beta, Beta: beta}
	if scaled.LossScale != 0 {
		acc.Alpha /= scaled.LossScale
	}
	return k.Axpby(stream, u, acc, g)
}

// orthogonalize moves the singular values of u close to 1. The result is in u or in next; scratch is
// the other of the two.
func (w *workspace) orthogonalize(k kernels.Kernels, s device.Stream) (result, scratch device.Tensor, err error) {
	do := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	x, y := w.u, w.next
	do(func() error { return k.Binary(s, kernels.Mul, y, x, x) })
	do(func() error { return k.Sum(s, w.norm, device.Store, y) })
	do(func() error { return k.Unary(s, kernels.Sqrt, w.norm, w.norm) })
	do(func() error { return k.Unary(s, kernels.Clamp(newtonSchulzEps, math.Inf(1)), w.norm, w.norm) })
	do(func() error { return k.Binary(s, kernels.Div, x, x, w.norm) })
	tall := x.Shape[0] > x.Shape[1] // then XᵀX is smaller than XXᵀ, and is multiplied from the right
	for range newtonSchulzes {
		do(func() error { return k.MatMul(s, w.gram, device.Store, x, tall, x, !tall) })
		do(func() error { return k.Copy(s, w.update, w.gram) })
		do(func() error {
			return k.MatMul(s, w.update, device.Accum{Alpha: newtonSchulzAA, Beta: newtonSchulzA}, w.gram, false, w.gram, false)
		})
		do(func() error { return k.Copy(s, y, x) })
		acc := device.Accum{Alpha: 1, Beta: newtonSchulzX}
		if tall {
			do(func() error { return k.MatMul(s, y, acc, x, false, w.update, false) })
		} else {
			do(func() error { return k.MatMul(s, y, acc, w.update, false, x, false) })
		}
		x, y = y, x
	}
	return x, y, err
}

// apply updates the parameter by the orthogonalized matrix o. scratch is memory of o's size.
func (r *muonRule) apply(s *slot, o, scratch, skip, overflow device.Tensor) error {
	v := s.Var()
	k, stream := kernels.Of(v.Device()), v.Device().Compute()
	if s.master == nil && v.DType() != o.DType {
		narrow := device.NewTensor(scratch.Buf, v.DType(), o.Shape...)
		if err := k.Copy(stream, narrow, o); err != nil {
			return err
		}
		o = narrow
	}
	scale := r.group.scale(matrix(s.Shape()))
	return k.SGD(stream, kernels.SGDStep{
		Param: v.Tensor(), Grad: o.Reshape(v.Shape()...), Master: s.masterTensor(), Skip: skip, Overflow: overflow,
		LR: r.group.LR * scale, WeightDecay: r.group.WeightDecay / scale,
	})
}

func (r *muonRule) updated() { r.velocity.BumpVersion() }

func (r *muonRule) state() ([]*autograd.Variable, error) {
	return []*autograd.Variable{r.velocity}, nil
}

func (r *muonRule) beginLoad() {}

func (r *muonRule) endLoad(int) {}
