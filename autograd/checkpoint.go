package autograd

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/goddp/goddp/device"
)

// Checkpoint computes f(x) without keeping the intermediate results of f. The backward pass runs f
// again. This trades a second forward pass for memory; results and gradients are the same bits. Divide
// a long model into several parts:
//
//	for _, block := range blocks {
//		x = autograd.Checkpoint(block.Forward, x)
//	}
//
// f may capture other variables, such as parameters and results of earlier operations. They get the
// same gradients as without Checkpoint. They must still exist, unchanged, at the backward pass:
// Backward panics with a [*ModifiedError] if an operand of f's operations was written in place since.
// A gradient must not be an operand, because the pass may write it before f runs again: Checkpoint
// panics with a [*GraphError].
//
// The second run must compute the same values as the first. Checkpoint compares the operations of both runs
// and the variables that need a gradient. If they differ, the pass fails with a [*RecomputeError]. If
// an operation fails in the second run, the pass fails with its error. A leaf that is frozen between
// the runs gets no gradient; a leaf that starts to require a gradient between the runs fails the pass.
//
// The second run draws the same random numbers from the device's [Generator]. If f draws random numbers
// elsewhere, or changes state, f must account for running twice, as [BatchNorm] does.
//
// When f returns, all variables that f made are freed, except its result and retained variables. After a
// Backward, the first operation of f starts the next step, unless this operation or Checkpoint uses
// a variable made in the current step.
//
// The first run counts the gradients that f will give to each leaf. So package ddp is notified once,
// at the same point of the pass as without Checkpoint. Checkpoints may be nested; each level runs its
// function once more.
func Checkpoint(f func(x *Variable) *Variable, x *Variable) (y *Variable) {
	in := []*Variable{x}
	operands("Checkpoint", in)
	s := x.s
	opens := s.opens(in)
	outer := s.scope
	s.inScope("when its Checkpoint returned", func() {
		s.scope.opens = opens // so that f may use variables of the current step that are not its argument
		s.scope.untaped = map[*block][]read{}
		from, random := s.nodes, s.random
		y = f(x)
		if y.s != s {
			panic(&DeviceError{Op: "Checkpoint", A: s.dev.String(), B: y.s.dev.String()})
		}
		outer.adopt(y.mem, s.scope)
		part := sectionOf(y, from)
		if len(part.nodes) == 0 {
			if outer.untaped != nil { // a Checkpoint around this one runs it again
				maps.Copy(outer.untaped, s.scope.untaped)
			}
			return
		}
		uses := part.outside
		if x.node == nil {
			uses = append(uses[:len(uses):len(uses)], x) // so that the pass also checks that x is not freed
		}
		c := &checkpoint{f: f, x: x, random: random, first: part.outline(), reads: part.reads(s.scope)}
		y = y.alias()
		y.observers = part.observers
		s.tape(c, uses, y)
	})
	return y
}

// checkpoint is the Function of a Checkpoint in the graph. Its inputs are the variables from outside that the
// operations in f use, once for each use. A pass goes through these operations instead of the checkpoint, so
// only the method Name is called, and the embedded Function is nil.
type checkpoint struct {
	Function
	f     func(*Variable) *Variable
	x     *Variable
	first outline
	reads []read
	// random is the state of the generator at the first run; the second run starts from it.
	random RandomGenerator
}

// read is an operand of an operation in f that was made outside of f.
type read struct {
	input
	op string
}

func (*checkpoint) Name() string { return "Checkpoint" }

// Saves reports that the second run reads the operands, and computes the result again.
func (*checkpoint) Saves(_, j int) bool { return j != Output }

// again computes f of the Checkpoint n once more, and passes n's gradient through the operations of f.
// They write the gradients of outside variables as if they were part of the graph, because the pass
// has counted these gradients.
func (p *pass) again(n *node, c *checkpoint) (err error) {
	s := p.s
	s.inScope("when its Checkpoint was passed through", func() {
		var y *Variable
		var part *section
		from := s.nodes
		c.checkVersions() // functions that this pass has already run again may have written operands
		random := s.random
		s.random = c.random
		defer func() { s.random = random }()
		c.thawed(n.in, func() {
			s.repeating(func() { s.taping(func() { y = c.f(c.x) }) })
			if err = y.Err(); err != nil {
				return
			}
			part = sectionOf(y, from)
			err = c.first.compare(part.outline())
		})
		if err != nil {
			return
		}
		defer func() {
			for _, n := range part.nodes {
				p.drop(n)
			}
		}()
		for _, n := range part.nodes {
			p.reads(n, (*pass).count)
		}
		y.node.grad, n.grad = n.grad, device.Tensor{}
		if err = p.throughAll(part.nodes); err == nil {
			err = p.aside.settle() // the end of the scope frees memory that the stream reads
		}
	})
	return err
}

// thawed runs f. If leaves were frozen after the first run, thawed unfreezes them while f runs, so that f
// builds the same graph. Afterwards they are frozen again, and get no gradient in the pass.
func (c *checkpoint) thawed(in []input, f func()) {
	for _, v := range in {
		if idle := v.idle; c.first.uses[idle].times > 0 {
			v.node, v.idle = idle, nil
			defer func() { v.node, v.idle = nil, idle }()
		}
	}
	f()
}

// section is the part of a graph that leads to one result and was built after some point.
type section struct {
	nodes     []*node     // nodes of results, the last applied first
	outside   []*Variable // earlier results and leaves that need a gradient, once for each use
	observers []Observer  // the observers of results
}

// reads returns the operands that were made outside of sc, once for each version. These are the operands of the
// operations in p, and the operands of untaped operations whose results an operation in p reads. It panics with a
// [*GraphError] if an operand is a gradient.
func (p *section) reads(sc *scope) (reads []read) {
	type key struct {
		mem     *block
		version uint64
	}
	seen := map[key]bool{}
	var add func(v input, op string)
	add = func(v input, op string) {
		if v.grad {
			panic(&GraphError{Call: "Checkpoint", Variable: v.String(),
				Reason: "it is a gradient, which the backward pass may write before it runs the function again: give the function a copy, such as MulScalar(v, 1)"})
		}
		k := key{v.mem, v.version}
		if seen[k] {
			return
		}
		seen[k] = true
		if v.mem.scope != sc && (v.mem.freed == "" || v.remade()) {
			reads = append(reads, read{v, op})
		}
		for _, r := range sc.untaped[v.mem] {
			add(r.input, r.op)
		}
	}
	for _, n := range p.nodes {
		if c, ok := n.fn.(*checkpoint); ok {
			for _, r := range c.reads {
				add(r.input, r.op+" within Checkpoint")
			}
			continue
		}
		for _, v := range n.in {
			add(v, n.fn.Name())
		}
	}
	return reads
}

// sectionOf returns the section that leads to root and was built after node number from. It does not
// change the fields in which a running backward pass keeps its state in the nodes.
func sectionOf(root *Variable, from uint64) *section {
	p := &section{}
	seen := map[*node]bool{}
	meet := func(v *Variable) {
		switch n := v.node; {
		case n == nil:
		case n.leaf != nil || n.number <= from:
			p.outside = append(p.outside, v)
		default:
			p.observers = append(p.observers, v.observers...)
			if !seen[n] {
				seen[n] = true
				p.nodes = append(p.nodes, n)
			}
		}
	}
	meet(root)
	for todo := 0; todo < len(p.nodes); todo++ {
		for _, v := range p.nodes[todo].in {
			meet(v.Variable)
		}
	}
	slices.SortFunc(p.nodes, latestFirst)
	return p
}

// latestFirst orders nodes as a pass visits them. An operation is applied after its inputs were made, so
// the order is topological, and the same in every run.
func latestFirst(a, b *node) int { return cmp.Compare(b.number, a.number) }

// outline describes a section so that two runs can be compared.
type outline struct {
	ops  []operation // in the order of section.nodes
	uses map[*node]use
}

type operation struct {
	name string
	out  device.Tensor // the result's type and shape, without memory
}

func (o operation) String() string { return fmt.Sprintf("%s %v", o.name, o.out) }

// use counts the uses of a variable that was made outside.
type use struct {
	what  *Variable
	times int
}

func (p *section) outline() outline {
	o := outline{uses: map[*node]use{}}
	for _, n := range p.nodes {
		o.ops = append(o.ops, operation{n.fn.Name(), device.Tensor{DType: n.out.t.DType, Shape: n.out.t.Shape}})
	}
	for _, v := range p.outside {
		o.uses[v.node] = use{v, o.uses[v.node].times + 1}
	}
	return o
}

// compare returns a [*RecomputeError] if the outline of the second run differs.
func (o outline) compare(again outline) error {
	n, m := len(o.ops), len(again.ops)
	if n != m {
		return &RecomputeError{What: "the number of operations", First: fmt.Sprint(n), Again: fmt.Sprint(m)}
	}
	for i := range slices.Backward(o.ops) { // in the order of application
		if a, b := o.ops[i], again.ops[i]; a.name != b.name || a.out.DType != b.out.DType || !a.out.Shape.Equal(b.out.Shape) {
			return &RecomputeError{What: fmt.Sprintf("operation %d of %d", n-i, n), First: a.String(), Again: b.String()}
		}
	}
	for _, list := range []map[*node]use{o.uses, again.uses} {
		for node, u := range list {
			if a, b := o.uses[node].times, again.uses[node].times; a != b {
				return &RecomputeError{What: fmt.Sprintf("the number of uses of %v", u.what), First: fmt.Sprint(a), Again: fmt.Sprint(b)}
			}
		}
	}
	return nil
}

// RecomputeError reports that a function given to [Checkpoint] computed something else in its second
// run. It fails the backward pass.
type RecomputeError struct {
	What         string // "operation 2 of 5"
	First, Again string // in the first run and in the second run
}

func (e *RecomputeError) Error() string {
	return fmt.Sprintf("autograd: recomputing a checkpointed function gave something else than its first run: %s was %s, now it is %s", e.What, e.First, e.Again)
}
