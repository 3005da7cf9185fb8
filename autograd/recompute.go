package autograd

import (
	"slices"

	"github.com/goddp/goddp/device"
)

// Recompute frees v's memory until the backward pass reads v. The pass then computes v again from the operands of its
// operation, and frees it after the last gradient that reads it. Results and gradients are the same bits. Call it when
// the forward pass has read v for the last time:
//
//	h := autograd.SwiGLU(gate, up)
//	y := autograd.Linear(h, w, nil)
//	h.Recompute()
//
// v must be the result of LayerNorm, RMSNorm or GroupNorm, of SwiGLU, or of an elementwise function of one variable:
// computing them again costs one pass over the operands. Recompute panics with a [*GraphError] for other variables;
// [Checkpoint] recomputes any function. The operands must still exist, unchanged, at the backward pass. The program must
// not use v again.
//
// Recompute does nothing if v needs no gradient, is retained, was written in place or shares its memory with another
// variable, or if an operand is a gradient.
func (v *Variable) Recompute() {
	if v.remade() { // the second run of a Checkpoint repeats the call
		return
	}
	v.alive()
	n := v.node
	if n == nil || v.mem.scope == nil || v.mem.shared || v.mem.version != 0 || v.mem.err != nil {
		return
	}
	if _, ok := n.fn.(recomputer); !ok {
		panic(&GraphError{Call: "Recompute", Variable: v.String(),
			Reason: "it is not the result of a normalization, SwiGLU or an elementwise function of one variable: give the operations that computed it to Checkpoint"})
	}
	if slices.ContainsFunc(n.in, func(x input) bool { return x.grad }) { // the pass may write it before it computes v
		return
	}
	n.remakes = true
	v.s.discard(v.mem)
}

// remade reports whether Recompute freed v. No other variable has had its memory.
func (v *Variable) remade() bool { return v.node != nil && v.node.remakes }

// recomputer is a [Function] whose result is computed again at the cost of one pass over the operands.
type recomputer interface {
	Function
	// recompute enqueues the computation of c.Out after Forward, which may have kept data for it.
	recompute(c *Call) error
}

// reads calls f with each variable that Recompute freed and that p reads in order to go through n, once for each use.
func (p *pass) reads(n *node, f func(*pass, *Variable) error) error {
	if c, ok := n.fn.(*checkpoint); ok {
		for _, r := range c.reads {
			if r.remade() {
				if err := f(p, r.Variable); err != nil {
					return err
				}
			}
		}
		return nil
	}
	for j, x := range n.in {
		if x.remade() && n.saves(j) {
			if err := f(p, x.Variable); err != nil {
				return err
			}
		}
	}
	if n.remakes && n.saves(Output) {
		return f(p, n.out)
	}
	return nil
}

// count notes a read of v that will come. It panics with a [*FreedError] if v cannot be computed again.
func (p *pass) count(v *Variable) error {
	if v.node.released {
		v.alive()
	}
	if p.readers == nil {
		p.readers = map[*block]int{}
	}
	p.readers[v.mem]++
	return nil
}

// remake computes v, unless an earlier read in this pass has done so.
func (p *pass) remake(v *Variable) error {
	n := v.node
	if v.mem.freed == "" {
		return nil
	}
	n.checkVersions()
	for _, x := range n.in { // the pass frees operands when it has gone through n
		if x.remade() {
			if err := p.remake(x.Variable); err != nil {
				return err
			}
		}
	}
	t, err := p.s.alloc(v.t.DType, v.t.Shape)
	if err != nil {
		return err
	}
	v.t, v.mem.buf, v.mem.freed = t, t.Buf, ""
	c := p.s.call(v)
	defer p.s.called(c)
	p.s.applied++
	for _, x := range n.in {
		c.In = append(c.In, x.t)
		if err := x.use(true); err != nil {
			return err
		}
	}
	return n.fn.(recomputer).recompute(c)
}

// read notes that p has read v. After the last read it frees v.
func (p *pass) read(v *Variable) error {
	if p.readers[v.mem]--; p.readers[v.mem] > 0 {
		return nil
	}
	mem := v.mem.buf
	v.mem.buf = device.Buffer{}
	p.s.discard(v.mem)
	if p.aside != nil && len(p.aside.written) > 0 { // the stream may still read it
		return p.aside.hold([]device.Buffer{mem})
	}
	p.s.dev.Free(mem)
	return nil
}

// discard frees b, which a pass can compute again.
func (s *state) discard(b *block) {
	b.isGivenUp = true
	s.free(b, "by Recompute")
}
