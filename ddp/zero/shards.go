package zero

import (
	"fmt"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// shards are a model's buckets as its ranks divide them. They are the hook that
// reduces gradients to shards, and watch the backward passes of the model.
type shards struct {
	pg      *comm.ProcessGroup
	module  nn.Model
	buckets []bucket
	parts   []*part
	reduced bool // since then no pass has begun
	join    joining
}

// bucket is one of the parameters, laid out as its gradients.
type bucket struct {
	name  string
	flat  device.Tensor
	shard device.Tensor // this rank's shard of it
	done  device.Event  // of a step: behind its updates; nil: behind all that is enqueued
}

// part is what lies of a parameter in this rank's shard: elements lo to hi, which
// may be none.
type part struct {
	*nn.Parameter               // the whole
	local         *nn.Parameter // the part, by the name and in the shape of the whole
	lo, hi        int
	bucket        int
}

// own is a rank's shard of a bucket.
func shard(pg *comm.ProcessGroup, flat device.Tensor) device.Tensor {
	n := flat.Len() / pg.Size()
	return flat.Range(pg.Rank()*n, (pg.Rank()+1)*n)
}

// Reduce gives this rank the averages of its shard.
func (s *shards) Reduce(b reducer.GradBucket) reducer.Reduction {
	s.reduced, s.join.owes = true, s.join.on
	return s.pg.With(comm.CallOptions{Name: b.Name, After: b.After}).ReduceScatter(shard(s.pg, b.Flat), b.Flat, b.Op)
}

// Place moves the parameters into buckets like those of their gradients.
func (s *shards) Place(buckets []reducer.GradBucket) error {
	byName := map[string]*nn.Parameter{}
	for _, p := range s.module.Parameters() {
		if byName[p.Name()] != nil {
			return fmt.Errorf("two parameters are called %q: their state would be", p.Name())
		}
		byName[p.Name()] = p
	}
	for i, g := range buckets {
		dt := byName[g.Params[0].Name].DType() // not the gradients', with ReduceDType
		buf, err := s.pg.Alloc(g.Flat.Len() * dt.Size())
		if err != nil {
			return fmt.Errorf("parameters of %s: %w", g.Name, err)
		}
		b := bucket{name: g.Name, flat: device.NewTensor(buf, dt, g.Flat.Len())}
		b.shard = shard(s.pg, b.flat)
		first := s.pg.Rank() * b.shard.Len()
		for k, p := range g.Params {
			at := int(g.Grads[k].Buf.Addr()-g.Flat.Buf.Addr()) / g.Flat.DType.Size()
			n := g.Grads[k].Len()
			whole := byName[p.Name]
			if whole.DType() != dt {
				return fmt.Errorf("%v and %v have gradients in one bucket, and are of two types", byName[g.Params[0].Name], whole)
			}
			if err := whole.Var().MoveTo(b.flat.Range(at, at+n)); err != nil {
				return fmt.Errorf("moving %s: %w", p.Name, err)
			}
			lo := min(max(first-at, 0), n)
			hi := max(min(first+b.shard.Len()-at, n), lo)
			s.parts = append(s.parts, newPart(s.pg.Device(), whole, lo, hi, i))
		}
		s.buckets = append(s.buckets, b)
	}
	return nil
}

func newPart(dev device.Device, whole *nn.Parameter, lo, hi, bucket int) *part {
	p := &part{Parameter: whole, lo: lo, hi: hi, bucket: bucket}
	v := autograd.FromTensor(dev, whole.Var().Tensor().Flat().Range(lo, hi))
	p.local = nn.NewPart(whole, v)
	v.SetGradSink((*gradient)(p))
	return p
}

// locals are the parts as the local optimizer's parameters.
func (s *shards) locals() []*nn.Parameter {
	var params []*nn.Parameter
	for _, p := range s.parts {
		params = append(params, p.local)
	}
	return params
}

// BeginBackward panics with an [*AccumulationError] where the pass would add to
// gradients that are in shards.
func (s *shards) BeginBackward(func(*autograd.Variable) bool) {
	if !s.reduced {
		return
	}
	for _, p := range s.parts {
		if p.Grad() != nil {
			panic(&AccumulationError{s.pg.Rank(), p.Name()})
		}
	}
	s.reduced = false
}

// EndBackward has nothing to add.
func (s *shards) EndBackward(err error) error { return nil }

// gradient is that of a part: what lies in this rank's shard of its parameter's,
// which package ddp owns.
type gradient part

func (g *gradient) Grad() device.Tensor {
	whole := g.Parameter.Grad()
	if whole == nil {
		return device.Tensor{}
	}
	return whole.Tensor().Flat().Range(g.lo, g.hi)
}

func (g *gradient) Settle()             {} // Grad has used the parameter's
func (g *gradient) Pending() bool       { return g.Var().GradPending() }
func (g *gradient) Err() error          { return g.Var().GradErr() }
func (g *gradient) Skip() device.Tensor { return g.Var().GradSkip() }
func (g *gradient) Zero()               { g.Var().ZeroGrad() }

// No backward pass reaches a part.

func (g *gradient) Fresh() bool        { return false }
func (g *gradient) Scale() float64     { return 1 }
func (g *gradient) Ready(device.Event) {}
func (g *gradient) Fail(error)         {}
