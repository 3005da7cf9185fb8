package autograd

import "github.com/goddp/goddp/device"

// passer is a [Function] whose gradient of an input may be the gradient of its result, element by element.
// The pass then shares the memory instead of copying it.
type passer interface {
	Function
	passes(c *Call, i int) bool
}

// adder is a [Function] whose Backward for input 0 adds c.addend to the gradient that it computes, unless
// c.addend is the zero Tensor.
type adder interface {
	Function
	addsAddend()
}

// keeper is a [preparer] that can tell that Prepare does not overwrite the gradient of the result.
type keeper interface {
	preparer
	keepsGradient() bool
}

// passOn makes n's gradient the first gradient of input i, without a copy, if n's operation passes it on
// unchanged. It reports whether it did so. It never does so for a leaf, whose gradient has its own memory.
func (p *pass) passOn(c *Call, n *node, i int) bool {
	v := n.in[i]
	f, ok := n.fn.(passer)
	if !ok || !f.passes(c, i) || v.node.leaf != nil || !v.node.grad.IsZero() || v.t.DType != n.grad.DType || n.grad.Buf.Len() == 0 {
		return false
	}
	v.node.grad = n.grad.Reshape(v.t.Shape...)
	p.sharers[n.grad.Buf.Addr()]++
	v.node.pending--
	return true
}

// isShared reports whether another node, or a stream beside Compute, may still read n's gradient.
func (p *pass) isShared(n *node) bool { return !n.grad.IsZero() && p.sharers[n.grad.Buf.Addr()] > 0 }

// unshare ensures that nothing else reads the memory of n's gradient. It copies the gradient if necessary.
func (p *pass) unshare(n *node) error {
	if !p.isShared(n) {
		return nil
	}
	shared := n.grad
	t, err := p.s.alloc(shared.DType, shared.Shape)
	if err != nil {
		return err
	}
	n.grad = t
	err = p.s.dev.Kernels().Copy(p.s.dev.Compute(), t, shared)
	p.free(shared.Buf)
	return err
}

// free returns the memory of a gradient to the device when its last sharer frees it.
func (p *pass) free(b device.Buffer) {
	if at := b.Addr(); p.sharers[at] > 0 {
		p.sharers[at]--
		return
	}
	p.s.dev.Free(b)
}
