package zero

import (
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/capture"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// shards divides the buckets of a model among the ranks. As a reducer.Hook it reduce-scatters the
// gradients. It also observes the backward passes of the model.
type shards struct {
	pg     *comm.ProcessGroup
	module nn.Model
	layout
	copies       bool          // Options.CopyShards
	isRegrouping bool          // within Optimizer.Regroup
	hasReduced   bool          // a pass was reduced, and none has started since
	prepared     *optim.Scaled // the step for which this rank has all that it needs; nil: none
	capturing    *capture.Step // the step that is being captured and has made a pass; else nil
	join         joining
}

// layout is the memory of the parameters, and the parts that a rank has of it. It depends on the rank and the size of
// the group.
type layout struct {
	rank, size int
	buckets    []*bucket
	parts      []*part // of this rank's shards
	copied     []*part // of the shards of the rank before, of which this rank keeps copies; nil: none
}

// before returns the rank whose shards this rank copies.
func (l *layout) before() int { return (l.rank + l.size - 1) % l.size }

// after returns the rank that copies this rank's shards.
func (l *layout) after() int { return (l.rank + 1) % l.size }

// bucket is a bucket of parameters, and their [gradsink.Source]. Its layout is that of the bucket with their gradients.
type bucket struct {
	shards *shards
	name   string
	flat   device.Tensor
	shard  device.Tensor // this rank's shard of flat
	copy   device.Tensor // a copy of the shard of the rank before; the zero Tensor if there is none
	grads  device.Tensor // the bucket of gradients
	gather *comm.Work    // the gather of the last step; nil: none, or the compute stream waits for it
	done   device.Event  // the event after the updates of the current step; nil: the end of all work enqueued so far
}

// part is the part of a parameter in this rank's shard: the elements lo to hi. It may be empty.
type part struct {
	*nn.Parameter               // the whole parameter
	local         *nn.Parameter // the part, with the name and the shape of the whole parameter
	lo, hi        int
	bucket        int
}

// shard returns a rank's shard of a bucket.
func (l *layout) shard(flat device.Tensor, rank int) device.Tensor {
	n := flat.Len() / l.size
	return flat.Range(rank*n, (rank+1)*n)
}

// Reduce reduce-scatters the bucket, so that this rank gets the averages of its shard.
func (s *shards) Reduce(b reducer.GradBucket) reducer.Reduction {
	s.hasReduced, s.join.owesStep = true, s.join.isActive
	return s.pg.With(&comm.CallOptions{Name: b.Name, After: b.After}).ReduceScatter(s.shard(b.Flat, s.rank), b.Flat, b.Op)
}

// Place moves the parameters into buckets with the layout of their gradients' buckets.
func (s *shards) Place(buckets []reducer.GradBucket) error {
	s.layout = layout{rank: s.pg.Rank(), size: s.pg.Size()}
	hasCopies := s.copies && s.size > 1 && s.pg.Survives()
	dev, byName := s.pg.Device(), map[string]*nn.Parameter{}
	for _, p := range s.module.Parameters() {
		if byName[p.Name()] != nil {
			return fmt.Errorf("two parameters are named %q, so their states would have the same names", p.Name())
		}
		byName[p.Name()] = p
	}
	for i, g := range buckets {
		dt := byName[g.Params[0].Name].DType() // with ReduceDType the gradients have another type
		buf, err := s.pg.Alloc(g.Flat.Len() * dt.Size())
		if err != nil {
			return fmt.Errorf("parameters of %s: %w", g.Name, err)
		}
		b := &bucket{shards: s, name: g.Name, flat: device.NewTensor(buf, dt, g.Flat.Len()), grads: g.Flat}
		b.shard = s.shard(b.flat, s.rank)
		if hasCopies {
			if buf, err = s.pg.Alloc(b.shard.Bytes()); err != nil {
				return fmt.Errorf("a copy of a shard of %s: %w", g.Name, err)
			}
			b.copy = device.NewTensor(buf, dt, b.shard.Len())
		}
		for k, p := range g.Params {
			at := int(g.Grads[k].Buf.Addr()-g.Flat.Buf.Addr()) / g.Flat.DType.Size()
			n := g.Grads[k].Len()
			whole := byName[p.Name]
			if whole.DType() != dt {
				return fmt.Errorf("parameters %v and %v share a bucket but are of different types, want one type per bucket", byName[g.Params[0].Name], whole)
			}
			if err := whole.Var().MoveTo(b.flat.Range(at, at+n)); err != nil {
				return fmt.Errorf("moving %s: %w", p.Name, err)
			}
			gradsink.SetSource(whole.Var(), b)
			part := newPart(dev, whole, i, at, b.shard, s.rank)
			gradsink.SetSource(part.local.Var(), b)
			s.parts = append(s.parts, part)
			if hasCopies {
				s.copied = append(s.copied, newPart(dev, whole, i, at, b.copy, s.before()))
			}
		}
		s.buckets = append(s.buckets, b)
	}
	return nil
}

// newPart returns the part of a parameter that begins at element `at` of a bucket. mem is the shard of the given rank.
func newPart(dev device.Device, whole *nn.Parameter, bucket, at int, mem device.Tensor, rank int) *part {
	n, first := whole.Var().Tensor().Len(), rank*mem.Len()
	lo := min(max(first-at, 0), n)
	hi := max(min(first+mem.Len()-at, n), lo)
	start := min(max(at+lo-first, 0), mem.Len()) // of an empty part too it is within the shard
	v := autograd.FromTensor(dev, mem.Range(start, start+hi-lo))
	return &part{Parameter: whole, local: nn.NewPart(whole, v), lo: lo, hi: hi, bucket: bucket}
}

// divideMasters copies to each part its elements of the whole parameter's master, and frees the whole masters.
func (s *shards) divideMasters() error {
	dev := s.pg.Device()
	for _, p := range slices.Concat(s.parts, s.copied) {
		whole := p.Master()
		if whole == nil {
			continue
		}
		mine := autograd.Zeros(dev, whole.DType(), p.hi-p.lo)
		err := mine.Err()
		if err == nil {
			err = dev.Kernels().Copy(dev.Compute(), mine.Tensor(), whole.Tensor().Flat().Range(p.lo, p.hi))
		}
		if err != nil {
			return fmt.Errorf("allocating this rank's part of the master weights of %s: %w", p.Name(), err)
		}
		p.local.SetMaster(mine)
	}
	for _, p := range s.parts {
		p.SetMaster(nil)
	}
	return nil
}

// parametersOf returns parts as parameters for a local optimizer.
func parametersOf(parts []*part) []*nn.Parameter {
	var params []*nn.Parameter
	for _, p := range parts {
		params = append(params, p.local)
	}
	return params
}

// BeginBackward panics with an [*AccumulationError] if the pass would add to gradients that are
// reduced to shards.
func (s *shards) BeginBackward(func(*autograd.Variable) bool) {
	if r := capture.Of(s.pg.Device()); r != nil {
		s.capture(r)
	}
	s.prepared = nil
	if !s.hasReduced {
		return
	}
	for _, p := range s.parts {
		if p.Grad() != nil {
			panic(&AccumulationError{s.pg.Rank(), p.Name()})
		}
	}
	s.hasReduced = false
}

// Stateless returns true: each pass reduces its gradients in the same way.
func (s *shards) Stateless() bool { return true }

// CanRegroup returns an error if the model is regrouped by itself: only the optimizer's Regroup may do it.
func (s *shards) CanRegroup() error {
	if s.isRegrouping {
		return nil
	}
	return errors.New("the optimizer's state is divided among the ranks (ddp/zero): want Regroup of its optimizer")
}

// Divided returns true: in the gradients of whole parameters, only this rank's shard holds averages.
func (s *shards) Divided() bool { return true }

// capture is called when a step that is being captured uses a parameter or begins a pass. The step's first pass depends
// on the value of hasReduced, and each replay must set hasReduced.
func (s *shards) capture(r *capture.Step) {
	if s.capturing == r {
		return
	}
	capture.Undo(r, &s.capturing)
	s.capturing = r
	before := s.hasReduced
	r.Require(func() bool { return s.hasReduced == before })
	capture.Replay(r, &s.hasReduced)
	r.Before(s.useAll)
}

// EndBackward does nothing.
func (s *shards) EndBackward(err error) error { return nil }

// gradient is the gradient of a part: a view of the parameter's gradient, which package ddp owns.
type gradient part

func (g *gradient) Grad() device.Tensor {
	whole := g.Parameter.Grad()
	if whole == nil {
		return device.Tensor{}
	}
	return whole.Tensor().Flat().Range(g.lo, g.hi)
}

func (g *gradient) Settle()             {} // Grad has settled the parameter's gradient
func (g *gradient) Pending() bool       { return gradsink.Of(g.Var()).Pending() }
func (g *gradient) Err() error          { return g.Var().GradErr() }
func (g *gradient) Skip() device.Tensor { return gradsink.Of(g.Var()).Skip() }

// No backward pass computes the gradient of a part, so no pass calls the following methods.

func (g *gradient) Scale() float64     { return 1 }
func (g *gradient) Ready(device.Event) {}
