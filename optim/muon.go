package optim

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// MuonOptions are the choices of [NewMuon]. The rule for a matrix W with the gradient G
// is that of torch.optim.Muon:
//
//	V = Momentum·V + (1-Momentum)·G
//	U = V, or by Nesterov (1-Momentum)·G + Momentum·V
//	W = (1 - LR·WeightDecay)·W - LR·scale·O
//
// O is U with its singular values brought near 1, by five Newton–Schulz steps (Jordan et
// al., "Muon: An optimizer for hidden layers in neural networks", 2024): from
// X = U/max(‖U‖, 1e-7) on,
//
//	A = X·Xᵀ,  X = 3.4445·X + (-4.7750·A + 2.0315·A²)·X
//
// A parameter of more than two axes, such as the kernel of a convolution, counts as a
// matrix with a row for each element of its first axis. The steps are made in Float32, or
// in Float64 for such parameters, where PyTorch makes them in BFloat16.
type MuonOptions struct {
	// LR is the learning rate, not negative. PyTorch's default is 0.001.
	LR float64
	// Momentum is the part of the velocity that a step keeps, below 1; 0: 0.95, but for
	// NoDefaults.
	Momentum float64
	// NoDefaults takes Momentum as it is, also where it is 0.
	NoDefaults bool
	// NoNesterov steps along the velocity, without looking ahead.
	NoNesterov bool
	// WeightDecay times LR is the part of a parameter that a step takes away.
	// PyTorch's default is 0.1.
	WeightDecay float64
	// MatchRMS makes scale 0.2·√max(rows, columns), with which steps are about as large as
	// AdamW's, so that LR and WeightDecay may be AdamW's. Without, scale is
	// √max(1, rows/columns).
	MatchRMS bool
	// MasterWeights is as in [SGDOptions].
	MasterWeights bool
}

// The coefficients of a Newton–Schulz step, how many are made, and the least norm that a
// matrix is divided by.
const (
	newtonSchulzX   = 3.4445
	newtonSchulzA   = -4.7750
	newtonSchulzAA  = 2.0315
	newtonSchulzes  = 5
	newtonSchulzEps = 1e-7
)

func (o *MuonOptions) check() {
	checkPositive([]string{"LR", "Momentum", "WeightDecay"}, o.LR, o.Momentum, o.WeightDecay)
	if !(o.Momentum < 1) {
		panic(&OptionError{"Momentum", o.Momentum, "less than 1"})
	}
}

// momentum is Momentum, or the default in its place.
func (o *MuonOptions) momentum() float64 {
	if o.Momentum == 0 && !o.NoDefaults {
		return 0.95
	}
	return o.Momentum
}

// scale is what a step of a matrix is multiplied by, beside LR.
func (o *MuonOptions) scale(rows, columns int) float64 {
	if o.MatchRMS {
		return 0.2 * math.Sqrt(float64(max(rows, columns)))
	}
	return math.Sqrt(max(1, float64(rows)/float64(columns)))
}

// MuonGroup is matrices that share options. The options may be changed between steps,
// the parameters may not.
type MuonGroup struct {
	Params []*nn.Parameter
	MuonOptions
	made bool // MasterWeights, as it was chosen
}

// Muon makes steps of equal size in all directions of a matrix: each step is
// orthogonalised. It is meant for the weights of hidden layers. Other parameters, which are
// vectors, embeddings and the last layer, are in groups of their own and follow the rule of
// [AdamW]. Its State has the velocities of matrices, as "NAME.velocity", and for the
// others what AdamW's has. It is driven by one goroutine; others may ask for what it has
// [Muon.Committed].
//
// The rule looks at whole matrices: package ddp/zero, which hands out parts of
// parameters, does not take it. [Muon.Divide] divides the work among ranks.
type Muon struct {
	optimizer
	groups  []*MuonGroup
	rest    []*AdamWGroup
	scratch map[device.DType]*autograd.Variable // for one matrix at a time
	share   *share                              // nil: this process orthogonalises all matrices
}

// NewMuon optimizes matrices, and the parameters of rest by the rule of AdamW. It
// panics with an [*OptionError] when options make no sense, or where a matrix has less than
// two axes.
func NewMuon(matrices []*nn.Parameter, opts MuonOptions, rest ...AdamWGroup) *Muon {
	return NewMuonGroups([]MuonGroup{{Params: matrices, MuonOptions: opts}}, rest...)
}

// NewMuonGroups optimizes several groups of matrices, each by its own options, and the
// parameters of rest as NewMuon does.
func NewMuonGroups(matrices []MuonGroup, rest ...AdamWGroup) *Muon {
	o := &Muon{scratch: map[device.DType]*autograd.Variable{}}
	for i := range matrices {
		g := &matrices[i]
		g.made = g.MasterWeights
		g.check()
		for _, p := range g.Params {
			if len(p.Shape()) < 2 {
				panic(&OptionError{"Params", p, "matrices, of two axes or more"})
			}
		}
		o.groups = append(o.groups, g)
		o.add(g.Params, func() rule { return &muonRule{muon: o, group: g} })
	}
	for i := range rest {
		o.rest = append(o.rest, &rest[i])
		o.addAdamW(&rest[i])
	}
	return o
}

// Groups are the groups of matrices, for changing their options.
func (o *Muon) Groups() []*MuonGroup { return o.groups }

// Rest are the groups of the other parameters, for changing their options.
func (o *Muon) Rest() []*AdamWGroup { return o.rest }

// SetLR sets the learning rate of all groups of matrices, and of no others.
func (o *Muon) SetLR(lr float64) {
	for _, g := range o.groups {
		g.LR = lr
	}
}

// wideType is the type that matrices of dt are orthogonalised in.
func wideType(dt device.DType) device.DType {
	if dt == device.Float64 {
		return dt
	}
	return device.Float32
}

// matrix is a parameter's shape as that of a matrix.
func matrix(shape device.Shape) (rows, columns int) { return shape[0], shape[1:].Len() }

// workspace is the scratch memory for one matrix: u and next of its shape, gram and
// update square, of its shorter side, norm a number.
type workspace struct{ u, next, gram, update, norm device.Tensor }

// workspaceLen is how many elements a matrix's workspace takes.
func workspaceLen(rows, columns int) int {
	side := min(rows, columns)
	return 2*rows*columns + 2*side*side + 1
}

// workspace cuts the scratch memory for a matrix, which allocate has made.
func (o *Muon) workspace(dt device.DType, rows, columns int) workspace {
	flat, at := o.scratch[dt].Tensor(), 0
	cut := func(shape ...int) device.Tensor {
		n := device.Shape(shape).Len()
		at += n
		return flat.Range(at-n, at).Reshape(shape...)
	}
	side := min(rows, columns)
	return workspace{cut(rows, columns), cut(rows, columns), cut(side, side), cut(side, side), cut()}
}

// muonRule is Muon's of one matrix. The velocity begins as zeros, so that the first step
// is no special one.
type muonRule struct {
	muon     *Muon
	group    *MuonGroup
	velocity *autograd.Variable // Float32 or Float64; nil before the first step
}

func (r *muonRule) check() {
	r.group.check()
	checkMasters(r.group.MasterWeights, r.group.made)
}

func (r *muonRule) masters() bool { return r.group.made }

func (r *muonRule) allocate(s *slot, dt device.DType) (err error) {
	dt = wideType(dt)
	if r.velocity == nil {
		if r.velocity, err = s.zeros("velocity", dt, s.Var().Shape()...); err != nil {
			r.velocity = nil
			return err
		}
	}
	n := workspaceLen(matrix(s.Var().Shape()))
	if have := r.muon.scratch[dt]; have == nil || have.Shape().Len() < n {
		made := autograd.Zeros(s.Var().Device(), dt, n)
		if err := made.Err(); err != nil {
			return fmt.Errorf("scratch memory for %s: %w", s.Name(), err)
		}
		r.muon.scratch[dt] = made
	}
	return nil
}

func (r *muonRule) update(s *slot, scaled Scaled) error {
	v := s.Var()
	if v.Shape().Len() == 0 {
		return nil
	}
	k, stream, beta := v.Device().Kernels(), v.Device().Compute(), r.group.momentum()
	rows, columns := matrix(v.Shape())
	w := r.muon.workspace(r.velocity.DType(), rows, columns)
	g := s.grad.Reshape(rows, columns)
	if g.DType != w.next.DType {
		if err := k.Copy(stream, w.next, g); err != nil {
			return err
		}
		g = w.next
	}
	// SGD's rule on u makes the velocity, unless the step is skipped, and puts it into u.
	err := k.Fill(stream, w.u, 0)
	if err == nil {
		err = k.SGD(stream, device.SGDStep{
			Param: w.u, Grad: g, Velocity: r.velocity.Tensor().Reshape(rows, columns),
			Skip: v.GradSkip(), LossScale: scaled.By, Overflow: scaled.Overflow,
			LR: -1, Momentum: beta, Dampening: beta,
		})
	}
	share := r.muon.share
	if err != nil || share != nil && !share.owns(s) {
		return err
	}
	if !r.group.NoNesterov && beta != 0 {
		acc := device.Accum{Alpha: 1 - beta, Beta: beta}
		if scaled.By != 0 {
			acc.Alpha /= scaled.By
		}
		if err := k.Axpby(stream, w.u, acc, g); err != nil {
			return err
		}
	}
	o, spare, err := w.orthogonalize(k, stream)
	switch {
	case err != nil:
		return err
	case share != nil:
		return k.Copy(stream, share.result(s), o)
	}
	return r.apply(s, o, spare, v.GradSkip(), scaled.Overflow)
}

// orthogonalize makes the singular values of u near 1. The result o is u or next; the other
// is spare.
func (w *workspace) orthogonalize(k device.Kernels, s device.Stream) (o, spare device.Tensor, err error) {
	do := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	x, y := w.u, w.next
	do(func() error { return k.Binary(s, device.Mul, y, x, x) })
	do(func() error { return k.Sum(s, w.norm, device.Store, y) })
	do(func() error { return k.Unary(s, device.Sqrt, w.norm, w.norm) })
	do(func() error { return k.Unary(s, device.Clamp(newtonSchulzEps, math.Inf(1)), w.norm, w.norm) })
	do(func() error { return k.Binary(s, device.Div, x, x, w.norm) })
	tall := x.Shape[0] > x.Shape[1] // then XᵀX is the smaller product, and multiplies from the right
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

// apply makes the step along o. spare is memory of o's size.
func (r *muonRule) apply(s *slot, o, spare, skip, overflow device.Tensor) error {
	v := s.Var()
	k, stream := v.Device().Kernels(), v.Device().Compute()
	if s.master == nil && v.DType() != o.DType {
		narrow := device.NewTensor(spare.Buf, v.DType(), o.Shape...)
		if err := k.Copy(stream, narrow, o); err != nil {
			return err
		}
		o = narrow
	}
	scale := r.group.scale(matrix(v.Shape()))
	return k.SGD(stream, device.SGDStep{
		Param: v.Tensor(), Grad: o.Reshape(v.Shape()...), Master: s.masterTensor(), Skip: skip, Overflow: overflow,
		LR: r.group.LR * scale, WeightDecay: r.group.WeightDecay / scale,
	})
}

func (r *muonRule) updated() { r.velocity.BumpVersion() }

func (r *muonRule) state() ([]*autograd.Variable, error) {
	return []*autograd.Variable{r.velocity}, nil
}

func (r *muonRule) restoring() {}

func (r *muonRule) restored(int) {}

// share is how the matrices are divided among ranks: which rank orthogonalises a matrix,
// and where all ranks then find the result. It is the tail of the optimizer's steps.
type share struct {
	muon   *Muon
	rank   int
	gather func(all, own device.Tensor) error
	places map[*slot]place
	flats  []flat
}

// place is where the result for a matrix lies.
type place struct {
	rank int
	t    device.Tensor
}

// flat is the results of one type: those of rank r are the r-th of equal parts.
type flat struct {
	all *autograd.Variable
	own device.Tensor // this rank's part
}

// Divide divides the matrices among size ranks: from now on each orthogonalises its share
// of them, and gather brings the results together. The velocities, which take little time,
// are made by all, so that all ranks have the same state. Parameters and gradients are equal
// on all ranks, as with package ddp, and all ranks make the same steps. gather is called
// within Step, when the step is known not to be skipped. It gives every rank the parts of
// all: own is the rank's part of all. What is enqueued on the compute stream afterwards finds
// them:
//
//	err := opt.Divide(pg.Rank(), pg.Size(), func(all, own device.Tensor) error {
//		return pg.AllGather(all, own).Wait(ctx)
//	})
//
// An error of gather tears the step. The results take as much memory as the matrices do
// in Float32. The error is that there is none.
func (o *Muon) Divide(rank, size int, gather func(all, own device.Tensor) error) error {
	sh := &share{muon: o, rank: rank, gather: gather, places: map[*slot]place{}}
	for _, dt := range []device.DType{device.Float32, device.Float64} {
		if err := sh.divide(dt, size); err != nil {
			return fmt.Errorf("optim: dividing matrices among %d ranks: %w", size, err)
		}
	}
	o.share, o.tail = sh, sh
	return nil
}

// divide gives each matrix of a type to the rank that has the least to do, beginning with
// those that take longest, and makes memory for the results.
func (sh *share) divide(dt device.DType, size int) error {
	var slots []*slot
	for _, s := range sh.muon.slots {
		if _, ok := s.rule.(*muonRule); ok && wideType(s.DType()) == dt {
			slots = append(slots, s)
		}
	}
	if len(slots) == 0 {
		return nil
	}
	work := func(s *slot) int {
		rows, columns := matrix(s.Shape())
		return rows * columns * min(rows, columns)
	}
	slices.SortStableFunc(slots, func(a, b *slot) int { return cmp.Compare(work(b), work(a)) })
	busy, lens := make([]int, size), make([]int, size)
	starts, ranks := make([]int, len(slots)), make([]int, len(slots))
	const grain = device.Align / 4 // elements between which a result may begin
	for i, s := range slots {
		r := 0
		for other := range busy {
			if busy[other] < busy[r] {
				r = other
			}
		}
		ranks[i], starts[i] = r, lens[r]
		busy[r] += work(s)
		lens[r] += (s.Shape().Len() + grain - 1) / grain * grain
	}
	part := slices.Max(lens)
	all := autograd.Zeros(slots[0].Var().Device(), dt, size*part)
	if err := all.Err(); err != nil {
		return err
	}
	t := all.Tensor()
	for i, s := range slots {
		at := ranks[i]*part + starts[i]
		rows, columns := matrix(s.Shape())
		sh.places[s] = place{ranks[i], t.Range(at, at+rows*columns).Reshape(rows, columns)}
	}
	sh.flats = append(sh.flats, flat{all, t.Range(sh.rank*part, (sh.rank+1)*part)})
	return nil
}

// owns tells whether this rank orthogonalises a matrix.
func (sh *share) owns(s *slot) bool { return sh.places[s].rank == sh.rank }

// result is where the result for a matrix goes.
func (sh *share) result(s *slot) device.Tensor { return sh.places[s].t }

// Updated has nothing to do.
func (sh *share) Updated(*nn.Parameter) {}

// Complete gathers the results and makes the matrices' steps.
func (sh *share) Complete() error {
	for _, f := range sh.flats {
		if err := sh.gather(f.all.Tensor(), f.own); err != nil {
			return fmt.Errorf("gathering orthogonalised matrices: %w", err)
		}
	}
	for _, s := range sh.muon.ready {
		r, ok := s.rule.(*muonRule)
		if !ok || s.Shape().Len() == 0 {
			continue
		}
		rows, columns := matrix(s.Shape())
		spare := sh.muon.workspace(r.velocity.DType(), rows, columns).u
		if err := r.apply(s, sh.result(s), spare, device.Tensor{}, device.Tensor{}); err != nil {
			return fmt.Errorf("update of %s: %w", s.Name(), err)
		}
	}
	return nil
}
