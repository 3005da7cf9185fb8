package zero

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/nn"
)

// Holds reports whether Place places a parameter: those that are trained, and in stage 3 those that are frozen too.
func (s *shards) Holds(p *nn.Parameter) bool {
	return !slices.Contains(s.ignored, p.Name()) && (!p.Frozen() || s.inSlots() && p.DType().IsFloat())
}

// Place moves the parameters into buckets. Those that are trained have the layout of their gradients' buckets.
func (s *shards) Place(all []reducer.GradBucket) error {
	ctx := s.pg.Context()
	s.layout = layout{rank: s.pg.Rank(), size: s.pg.Size()}
	err := s.plan(all)
	if err == nil {
		err = s.allocate()
	}
	if err := comm.Agree(ctx, s.pg, err); err != nil {
		return err
	}
	if s.inSlots() {
		if err := s.openFlow(); err != nil {
			return err
		}
	}
	if !s.isRegrouping {
		if err := s.agreeOnMasters(); err != nil {
			return err
		}
	}
	for _, b := range s.buckets {
		for k, p := range b.params {
			first, e := s.initial(b, k)
			if e != nil {
				err = errors.Join(err, fmt.Errorf("placing %s: %w", p.Name(), e))
			}
			if err := comm.Agree(ctx, s.pg, err); err != nil {
				return err
			}
			if err = s.place(b, k, first); err != nil {
				err = fmt.Errorf("placing %s: %w", p.Name(), err)
			}
		}
		if err == nil && b.slot != nil {
			err = s.pg.Device().Copy(s.pg.Device().Compute(), b.shard.Buf, s.shard(b.flat, s.rank).Buf)
		}
	}
	s.setParts(s.inSlots())
	return comm.Agree(ctx, s.pg, err)
}

// plan makes the buckets, without memory yet.
func (s *shards) plan(all []reducer.GradBucket) error {
	byName := map[string]*nn.Parameter{}
	for _, p := range s.module.Parameters() {
		if byName[p.Name()] != nil {
			return fmt.Errorf("two parameters are named %q, so their states would have the same names", p.Name())
		}
		byName[p.Name()] = p
	}
	for _, g := range all {
		b := &bucket{name: g.Name, grads: g.Flat}
		for k, p := range g.Params {
			b.params = append(b.params, byName[p.Name])
			b.at = append(b.at, int(g.Grads[k].Buf.Addr()-g.Flat.Buf.Addr())/g.Flat.DType.Size())
		}
		dt := b.params[0].DType() // with ReduceDType the gradients have another type
		for _, p := range b.params {
			if p.DType() != dt {
				return fmt.Errorf("parameters %v and %v share a bucket but are of different types, want one type per bucket", b.params[0], p)
			}
		}
		s.add(b, dt, g.Flat.Len())
	}
	if s.inSlots() {
		s.planFrozen()
	}
	return nil
}

// add adds a bucket of n elements of type dt.
func (s *shards) add(b *bucket, dt device.DType, n int) {
	b.shards, b.index, b.flat = s, len(s.buckets), device.Tensor{DType: dt, Shape: device.Shape{n}}
	s.buckets = append(s.buckets, b)
}

// planFrozen makes the buckets of frozen parameters.
func (s *shards) planFrozen() {
	var params []*nn.Parameter
	var described []reducer.Param
	seen := map[any]bool{}
	for _, p := range s.module.Parameters() {
		if id := p.Identity(); p.Frozen() && s.Holds(p) && !seen[id] {
			seen[id] = true
			params = append(params, p)
			described = append(described, reducer.Param{Name: p.Name(), Shape: p.Shape(), DType: p.DType()})
		}
	}
	for i, of := range buckets.Assign(described, s.largest/2) {
		b := &bucket{name: fmt.Sprint("frozen bucket ", i), frozen: true}
		end, dt := 0, params[of[0]].DType()
		for _, k := range of {
			b.params, b.at = append(b.params, params[k]), append(b.at, end/dt.Size())
			end += device.AlignUp(params[k].Shape().Len() * dt.Size())
		}
		unit := s.size * device.Align
		s.add(b, dt, (end+unit-1)/unit*unit/dt.Size())
	}
}

// allocate allocates the memory of all buckets.
func (s *shards) allocate() error {
	alloc := func(to *device.Tensor, dt device.DType, n int, what, of string) error {
		buf, err := s.pg.Alloc(n * dt.Size())
		if err != nil {
			return fmt.Errorf("%s of %s: %w", what, of, err)
		}
		*to = device.NewTensor(buf, dt, n)
		return nil
	}
	if s.inSlots() {
		if err := s.allocateSlots(); err != nil {
			return err
		}
	}
	for _, b := range s.buckets {
		dt, n := b.flat.DType, b.flat.Len()
		var err error
		if b.slot != nil {
			b.flat = device.NewTensor(b.slot.mem.Slice(0, n*dt.Size()), dt, n)
			err = alloc(&b.shard, dt, n/s.size, "a shard", b.name)
		} else if err = alloc(&b.flat, dt, n, "parameters", b.name); err == nil {
			b.shard = s.shard(b.flat, s.rank)
		}
		if err == nil && s.stage > 1 && !b.frozen {
			err = alloc(&b.sum, b.grads.DType, n/s.size, "a shard of gradients", b.name)
		}
		if err == nil && s.makesCopies() {
			err = alloc(&b.copy, dt, n/s.size, "a copy of a shard", b.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makesCopies reports whether this rank keeps copies of the shards of the rank before it.
func (s *shards) makesCopies() bool { return s.copies && s.size > 1 && s.pg.Survives() }

// agreeOnMasters drops the masters of parameters that have none on some rank.
func (s *shards) agreeOnMasters() error {
	var params []*nn.Parameter
	var has []bool
	for _, b := range s.buckets {
		for _, p := range b.params {
			if p.DType().Size() == 2 {
				params, has = append(params, p), append(has, p.KeepsMaster())
			}
		}
	}
	has, err := buckets.OnAll(s.pg.Context(), s.pg, has)
	for i, p := range params {
		if err == nil && !has[i] {
			p.SetMaster(nil)
		}
	}
	return err
}

// memory returns the memory of parameter k of the bucket.
func (b *bucket) memory(k int) device.Tensor {
	return b.flat.Range(b.at[k], b.at[k]+b.params[k].Shape().Len())
}

// initial returns this rank's initial values of parameter k of a bucket, or nil if its memory in the bucket holds them
// already.
func (s *shards) initial(b *bucket, k int) (first *autograd.Variable, err error) {
	p := b.params[k]
	if !p.Placed() {
		return p.Initial(s.pg.Device())
	}
	if s.isRegrouping {
		gradsink.SetSource(p.Var(), nil) // that of the ranks before; take sets the values
	}
	err = p.Var().MoveTo(b.memory(k))
	return p.Master(), err
}

// place sets parameter k of a bucket to rank 0's initial values, and makes this rank's parts of it. It frees first.
func (s *shards) place(b *bucket, k int, first *autograd.Variable) error {
	dev, p, to := s.pg.Device(), b.params[k], b.memory(k)
	from := to
	if first != nil {
		from = first.Tensor()
	}
	if !s.isRegrouping && !s.skipSync {
		if err := s.pg.With(&comm.CallOptions{Name: "initial " + p.Name()}).Broadcast(from, 0).Wait(s.pg.Context()); err != nil {
			return err
		}
	}
	if first != nil {
		if err := dev.Kernels().Copy(dev.Compute(), to.Reshape(p.Shape()...), from); err != nil {
			return err
		}
	}
	if !p.Placed() {
		p.PlaceAt(dev, to)
	}
	gradsink.SetSource(p.Var(), b)
	mine := newPart(dev, p, b, b.at[k], b.shard, s.rank)
	if b.frozen {
		mine.local.Freeze()
		s.frozen = append(s.frozen, mine)
	} else {
		s.parts = append(s.parts, mine)
	}
	var source gradsink.Source = b // a gather writes the whole bucket
	if s.inSlots() {
		source = partSource{s}
	}
	gradsink.SetSource(mine.local.Var(), source)
	made := []*part{mine}
	if s.makesCopies() {
		theirs := newPart(dev, p, b, b.at[k], b.copy, s.before())
		s.copied, made = append(s.copied, theirs), append(made, theirs)
	}
	if first == nil {
		return nil
	}
	for _, part := range made {
		if first.DType() != p.DType() { // unrounded
			if err := part.keepMaster(dev, first); err != nil {
				return err
			}
		}
	}
	p.SetMaster(nil)
	first.Free()
	return nil
}

// newPart returns the part of a parameter that begins at element `at` of a bucket. mem is the shard of the given rank.
func newPart(dev device.Device, whole *nn.Parameter, b *bucket, at int, mem device.Tensor, rank int) *part {
	p := &part{Parameter: whole, at: at, bucket: b}
	p.lo, p.hi = p.of(rank)
	p.start = min(max(at+p.lo-rank*mem.Len(), 0), mem.Len()) // of an empty part too it is within the shard
	p.local = nn.NewPart(whole, autograd.FromTensor(dev, mem.Range(p.start, p.start+p.hi-p.lo)))
	return p
}

// of returns which elements of the parameter a rank has.
func (p *part) of(rank int) (lo, hi int) {
	n, size := p.Shape().Len(), p.bucket.shard.Len()
	first := rank * size
	lo = min(max(first-p.at, 0), n)
	return lo, max(min(first+size-p.at, n), lo)
}

// keepMaster copies the part's elements of the whole parameter's master.
func (p *part) keepMaster(dev device.Device, whole *autograd.Variable) error {
	mine := autograd.Zeros(dev, whole.DType(), p.hi-p.lo)
	err := mine.Err()
	if err == nil {
		err = dev.Kernels().Copy(dev.Compute(), mine.Tensor(), whole.Tensor().Flat().Range(p.lo, p.hi))
	}
	if err != nil {
		return fmt.Errorf("allocating this rank's part of the master weights of %s: %w", p.Name(), err)
	}
	p.local.SetMaster(mine)
	return nil
}
