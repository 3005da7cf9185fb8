package autograd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
)

// BackwardOptions are the choices of [Variable.Backward].
type BackwardOptions struct {
	// Gradient is the gradient of the variable, and has the variable's shape. nil means 1 and is for scalars.
	Gradient *Variable
	// RetainGraph keeps the graph for another backward pass through it.
	RetainGraph bool
}

// Backward computes the derivatives of v with respect to all leaves that it depends on, adds them to the
// leaves' gradients, and releases the graph. v must be a scalar, unless opts.Gradient is set.
//
// The error is the first error of an operation, a kernel or an [Observer]. The gradients of this pass
// are then undefined until they are zeroed: see [Variable.GradErr].
//
// Backward panics with a [*GraphError] if v is not a scalar, requires no gradient, or its graph was
// released; with a [*FreedError] if a value that the pass reads was freed; and with a
// [*ModifiedError] if such a value was written in place since the graph was built.
func (v *Variable) Backward(opts *BackwardOptions) error {
	o := *cmp.Or(opts, &BackwardOptions{})
	grad := o.Gradient
	switch {
	case grad == nil && v.t.Len() != 1:
		panic(&GraphError{Call: "Backward", Variable: v.String(), Reason: "it is not a scalar, such as a loss: reduce it, or set BackwardOptions.Gradient"})
	case grad != nil && !v.t.Shape.Equal(grad.t.Shape):
		panic(&device.ShapeError{Op: "Backward with a Gradient", A: v.t.Shape, B: grad.t.Shape})
	case grad != nil:
		operands("Backward", []*Variable{v, grad})
	}
	v.alive()
	if v.node == nil {
		panic(&GraphError{Call: "Backward", Variable: v.String(), Reason: "it requires no gradient"})
	}
	p := v.s.walk(v)
	defer func() {
		if !p.isOver {
			p.panicked(recover())
		}
	}()
	for _, o := range p.observers {
		o.BeginBackward(func(leaf *Variable) bool { return leaf.node != nil && leaf.node.pass == p.id })
		p.notified = append(p.notified, o)
	}
	for _, n := range p.nodes { // after BeginBackward, so that EndBackward reports a panic to the observers
		n.checkVersions()
	}
	p.running, p.retain = true, o.RetainGraph
	err := v.Err()
	if err == nil && grad != nil {
		err = grad.Err()
	}
	if err == nil {
		err = p.run(v, grad)
	}
	p.end(err)
	for len(p.notified) > 0 {
		o := p.notified[0]
		p.notified = p.notified[1:]
		switch e := o.EndBackward(err); {
		case e == nil:
		case err == nil || errors.Is(e, err):
			err = e
		default:
			err = errors.Join(err, e)
		}
	}
	p.isOver = true
	return err
}

// panicked ends a pass that panics with thrown, then panics again. A nil thrown means that the
// goroutine ends without a panic.
func (p *pass) panicked(thrown any) {
	err := &PanicError{Value: thrown}
	if p.running {
		p.retain = false
		p.end(err)
	}
	for _, o := range p.notified {
		o.EndBackward(err) // the error of EndBackward is lost, because the panic continues
	}
	if thrown != nil {
		panic(thrown)
	}
}

// PanicError is the error that an [Observer] receives for a pass that panics, and the result of [Variable.GradErr]
// of the leaves that the pass reached.
type PanicError struct {
	Value any // the panic's value; nil if the goroutine ended without a panic
}

func (e *PanicError) Error() string {
	if e.Value == nil {
		return "the backward pass called runtime.Goexit"
	}
	return fmt.Sprintf("panic in the backward pass: %v", e.Value)
}

// pass is one backward pass.
type pass struct {
	s         *state
	id        uint64
	nodes     []*node // nodes of results, the last applied first
	leaves    []*node
	observers []Observer
	notified  []Observer // observers between BeginBackward and EndBackward
	running   bool       // gradients are being written
	retain    bool       // the graph is kept for another pass
	aside     *aside     // nil unless the step is being captured
	isOver    bool
	// sharers holds, for each gradient's memory that has several owners, the number of owners minus one.
	sharers map[uintptr]int
	// readers holds, for each memory that Recompute freed, the number of reads that are still to come in this pass.
	readers map[*block]int
}

// walk finds the part of the graph that a pass from root reaches. It counts the gradients that will
// arrive at each node, and panics if a part of the graph or a saved value is gone.
func (s *state) walk(root *Variable) *pass {
	s.passes++
	p := &pass{s: s, id: s.passes, sharers: map[uintptr]int{}}
	p.meet(root)
	for todo := 0; todo < len(p.nodes); todo++ {
		n := p.nodes[todo]
		if n.released {
			panic(&GraphError{Call: "Backward", Variable: root.String(),
				Reason: "an earlier Backward call freed a part of its graph: set BackwardOptions.RetainGraph in the earlier call"})
		}
		for _, b := range n.saved {
			if b.freed != "" {
				panic(&FreedError{Op: n.fn.Name(), Step: b.made, Freed: b.freed})
			}
		}
		p.reads(n, (*pass).count)
		if n.out.mem.isGivenUp && !n.remakes && n.saves(Output) {
			n.out.alive()
		}
		for j, v := range n.in {
			if !v.remade() && (!v.mem.isGivenUp || n.saves(j)) {
				v.alive()
			}
			if v.node != nil {
				p.meet(v.Variable)
			}
		}
	}
	slices.SortFunc(p.nodes, latestFirst)
	return p
}

// meet counts one more gradient that will arrive at v.
func (p *pass) meet(v *Variable) {
	for _, o := range v.observers {
		if !slices.Contains(p.observers, o) {
			p.observers = append(p.observers, o)
		}
	}
	n := v.node
	if n.pass != p.id {
		n.pass, n.pending = p.id, 0
		if n.leaf != nil {
			p.leaves = append(p.leaves, n)
		} else {
			p.nodes = append(p.nodes, n)
		}
	}
	n.pending++
}

// run computes all gradients. The gradient of root is grad, or ones if grad is nil.
func (p *pass) run(root, grad *Variable) error {
	dev := p.s.dev
	p.aside = p.s.beside(p.free)
	dst, acc, err := p.destination(root)
	if err != nil {
		return err
	}
	var seed device.Tensor
	if grad != nil && grad.t.DType == dst.DType {
		seed = grad.t
	} else {
		if seed, err = p.s.alloc(dst.DType, root.t.Shape); err != nil {
			return err
		}
		defer dev.Free(seed.Buf)
		if grad != nil {
			err = dev.Kernels().Copy(dev.Compute(), seed, grad.t)
		} else {
			err = dev.Kernels().Fill(dev.Compute(), seed, 1)
		}
		if err != nil {
			return err
		}
	}
	if err := dev.Kernels().Axpby(dev.Compute(), dst, acc, seed); err != nil {
		return err
	}
	if err := p.arrived(root.node); err != nil {
		return err
	}
	if err := p.throughAll(p.nodes); err != nil {
		return err
	}
	return p.aside.settle()
}

// throughAll passes gradients through nodes, in their order.
func (p *pass) throughAll(nodes []*node) error {
	for _, n := range nodes {
		err := p.reads(n, (*pass).remake)
		if err == nil {
			err = p.through(n)
		}
		if err == nil {
			err = p.reads(n, (*pass).read)
		}
		if err != nil {
			return fmt.Errorf("backward of %s: %w", n.fn.Name(), err)
		}
	}
	return nil
}

// through passes n's gradient on to the inputs of n.
func (p *pass) through(n *node) (err error) {
	if f, ok := n.fn.(*checkpoint); ok {
		return p.again(n, f)
	}
	c := p.s.call(n.out)
	p.s.applied++
	for j, v := range n.in {
		c.In = append(c.In, v.t)
		if v.hasSource() && n.saves(j) {
			err = cmp.Or(err, v.use(true))
		}
	}
	c.inBackward, c.node = true, n
	forked := false
	defer func() {
		defer p.s.called(c)
		if !p.retain {
			c.scratch = append(c.scratch, n.spend()...)
		}
		if forked {
			held := slices.Clone(c.scratch)
			if !n.grad.IsZero() {
				held = append(held, n.grad.Buf)
				n.grad = device.Tensor{}
			}
			err = errors.Join(err, p.aside.hold(held))
			return
		}
		for _, b := range c.scratch {
			p.free(b)
		}
		p.drop(n)
	}()
	if err != nil {
		return err
	}
	if f, ok := n.fn.(preparer); ok {
		if k, ok := f.(keeper); !ok || !k.keepsGradient() {
			if err := p.unshare(n); err != nil {
				return err
			}
		}
		if err := f.Prepare(c, n.grad); err != nil {
			return err
		}
	}
	// Leaves come first: the reducer can send their gradients to other ranks while
	// the gradients of results are computed. Later inputs come before earlier inputs, just
	// as a pass reaches later layers before earlier layers.
	_, mayFork := n.fn.(weighted)
	mayFork = mayFork && p.aside != nil && !n.fillsGPU() && !n.in[0].hasSource() && slices.ContainsFunc(n.in, func(v input) bool { return v.node != nil && v.node.leaf == nil })
	var done [3]bool // the inputs of a joint whose gradients were computed with that of a leaf
	for _, leaves := range []bool{true, false} {
		needed := func(i int) bool {
			v := n.in[i]
			return v.node != nil && (v.node.leaf != nil) == leaves && (i > 2 || !done[i])
		}
		for i := len(n.in) - 1; i >= 0; i-- {
			if !needed(i) {
				continue
			}
			if p.passOn(c, n, i) {
				continue
			}
			from := i
			if f, ok := n.fn.(joint); ok && i <= 2 {
				// The other stream computes only gradients of leaves.
				joins := func(i int) bool { return needed(i) || leaves && !mayFork && n.in[i].node != nil }
				for from > f.firstJoint() && joins(from-1) && !n.shares(from-1, i) {
					from--
					done[from] = true
				}
			}
			if leaves && mayFork {
				forked = true
			}
			if err := p.into(c, n, from, i, leaves && mayFork); err != nil {
				return err
			}
			i = from
		}
	}
	return nil
}

// shares reports whether input i is the same variable as one of the inputs after it up to last. Their gradients
// are added, one after the other.
func (n *node) shares(i, last int) bool {
	return slices.ContainsFunc(n.in[i+1:last+1], func(v input) bool { return v.node == n.in[i].node })
}

// into computes the gradients of n's inputs first to last, at most three, into their destinations. It
// does so on the stream of p.aside if fork is set.
func (p *pass) into(c *Call, n *node, first, last int, fork bool) (err error) {
	var dst, home [3]device.Tensor
	var acc, howHome [3]device.Accum
	at := func(i int) int { // the index of input i in dst: 0 if there is only one destination
		if first == last {
			return 0
		}
		return i
	}
	_, casts := n.fn.(cast) // a cast can write a gradient of any type
	if _, ok := n.fn.(adder); ok && first == 0 && n.in[0].node.leaf == nil && p.isShared(n.in[0].node) {
		c.addend, n.in[0].node.grad = n.in[0].node.grad, device.Tensor{}
		defer func() {
			p.free(c.addend.Buf)
			c.addend = device.Tensor{}
		}()
	}
	for i := first; i <= last; i++ {
		v, j := n.in[i], at(i)
		if dst[j], acc[j], err = p.destination(v.Variable); err != nil {
			return err
		}
		if dst[j].DType != v.t.DType && !casts { // the owner of the gradient chose another type
			home[j], howHome[j], acc[j] = dst[j], acc[j], device.Store
			if dst[j], err = c.New(v.t.DType, v.t.Shape...); err != nil {
				return err
			}
		}
	}
	if fork {
		if err := p.aside.fork(); err != nil {
			return err
		}
		c.Stream = p.aside.stream
		defer func() { c.Stream = p.s.dev.Compute() }()
	}
	for _, v := range n.in[first : last+1] {
		switch {
		case fork:
			p.aside.written[v.node] = true
		case p.aside != nil && p.aside.written[v.node]: // the stream may still write this gradient
			if err := p.aside.join(); err != nil {
				return err
			}
		}
	}
	if first == last {
		err = n.fn.Backward(c, first, dst[0], acc[0], n.grad)
	} else {
		err = n.fn.(joint).backwardJoint(c, dst, acc, n.grad)
	}
	for i, t := range home {
		if err == nil && !t.IsZero() {
			err = cast(t.DType).Backward(c, 0, t, howHome[i], dst[i])
		}
	}
	if err != nil {
		return err
	}
	for _, v := range slices.Backward(n.in[first : last+1]) {
		if err := p.arrived(v.node); err != nil {
			return err
		}
	}
	return nil
}

// destination returns the tensor and the Accum for the next gradient of v.
func (p *pass) destination(v *Variable) (device.Tensor, device.Accum, error) {
	n, acc := v.node, device.Accum{Alpha: 1, Beta: 1}
	if n.leaf == nil {
		if err := p.unshare(n); err != nil {
			return n.grad, acc, err
		}
	}
	if n.grad.IsZero() {
		dst, fresh, err := p.begin(v)
		if err != nil {
			return dst, acc, err
		}
		n.grad = dst
		if fresh {
			acc.Beta = 0
		}
	}
	if n.leaf != nil && n.leaf.Sink != nil && n.pending == 1 {
		scale := n.leaf.Sink.Scale()
		acc.Alpha *= scale
		acc.Beta *= scale
	}
	return n.grad, acc, nil
}

// begin returns the tensor for v's gradient in this pass. fresh reports whether the first write
// overwrites the tensor.
func (p *pass) begin(v *Variable) (dst device.Tensor, fresh bool, err error) {
	if v.node.leaf != nil {
		return v.node.leaf.begin()
	}
	dst, err = p.s.alloc(v.t.DType, v.t.Shape)
	return dst, true, err
}

// arrived notes that one gradient for n was written. After the last one it notifies the owner of a leaf's gradient.
func (p *pass) arrived(n *node) error {
	n.pending--
	if n.pending > 0 || n.leaf == nil || n.leaf.Sink == nil {
		return nil
	}
	at := p.s.dev.Compute().Mark()
	if p.aside != nil && len(p.aside.written) > 0 { // all gradients so far are final after the event
		if err := p.aside.fork(); err != nil {
			return err
		}
		at = p.aside.stream.Mark()
	}
	n.leaf.Sink.Ready(at)
	return nil
}

// drop frees the gradient of the result n.
func (p *pass) drop(n *node) {
	if !n.grad.IsZero() {
		p.free(n.grad.Buf)
		n.grad = device.Tensor{}
	}
}

// end restores the graph's state between passes. err is the pass's error.
func (p *pass) end(err error) {
	p.running = false
	if err != nil {
		p.aside.settle() // an error can be ignored: err is the pass's error
	}
	for _, n := range p.nodes {
		p.drop(n)
		if !p.retain {
			n.release()
		}
	}
	for _, n := range p.leaves {
		n.grad = device.Tensor{}
		n.leaf.failed(err)
	}
	p.s.ended = p.s.ended || p.s.scope == p.s.step
}
