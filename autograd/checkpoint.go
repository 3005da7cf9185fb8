package autograd

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
)

// Checkpoint is f(x), which keeps nothing of what f computes on the way: a
// backward pass runs f again when it comes there. It trades a second forward
// pass through f for the memory of its intermediates; results and gradients are
// the same bits. A long model is cut into several parts:
//
//	for _, block := range blocks {
//		x = autograd.Checkpoint(block.Forward, x)
//	}
//
// What f uses beside x, parameters and results of other operations, it may
// capture: gradients reach that as they would without Checkpoint. It must be
// there, unchanged, at the backward pass: Backward panics with a
// [*ModifiedError] where an operand of f's operations was written in place since. An
// operand that is a gradient panics with a [*GraphError], because the pass may write it
// before f runs again. f has to compute the same again: its
// operations and the variables that need a gradient are compared, and those
// that differ fail the pass with a [*RecomputeError], as an operation that fails
// in the second run does. A leaf that is frozen in between gets no gradient, as
// without Checkpoint; one that begins to need a gradient in between fails the pass.
// The second run draws the random numbers of the first from the device's [Generator]. An
// f that draws others, or changes a state of its own, has to make up for being run twice;
// [BatchNorm] does. What f
// makes, but for its result, is freed when f returns, and used no more unless it
// is retained. After a Backward, f's first operation begins the next step, unless
// that or Checkpoint is given something made in the step that is running.
//
// The first run finds out which leaves f will give gradients to, and how often,
// so that a [GradSink] hears that a gradient is final at the same point of the
// pass as it would without Checkpoint, and once, wherever else the leaf is used.
// Checkpoints may be nested: each level runs what it holds once more.
func Checkpoint(f func(x *Variable) *Variable, x *Variable) (y *Variable) {
	in := []*Variable{x}
	operands("Checkpoint", in)
	s := x.s
	opens := s.opens(in)
	outer := s.scope
	s.inScope("when its Checkpoint returned", func() {
		s.scope.opens = opens // what f captures may be of the step that is running
		from, random := s.nodes, s.random
		y = f(x)
		if y.s != s {
			panic(&DeviceError{Op: "Checkpoint", A: s.dev.String(), B: y.s.dev.String()})
		}
		outer.adopt(y.mem, s.scope)
		part := sectionOf(y, from)
		if len(part.nodes) == 0 {
			return
		}
		uses := part.outside
		if x.node == nil {
			uses = append(uses[:len(uses):len(uses)], x) // for the pass to see that it is there
		}
		c := &checkpoint{f: f, x: x, random: random, first: part.outline(), reads: part.reads(s.scope)}
		y = y.alias()
		y.observers = part.observers
		s.record(c, uses, y)
	})
	return y
}

// checkpoint is what Checkpoint leaves in the graph. Its inputs are those of
// the operations inside, once for each use. A pass goes through these operations
// in its place, so that of a Function it has the name alone.
type checkpoint struct {
	Function
	f     func(*Variable) *Variable
	x     *Variable
	first outline
	reads []read
	// random is the generator as the first run found it: the second draws the same.
	random RandomGenerator
}

// read is an operand of an operation inside that was made outside.
type read struct {
	input
	op string
}

func (*checkpoint) Name() string { return "Checkpoint" }

// again passes the gradient that has arrived at n, a Checkpoint, on through the
// operations inside, which it computes once more. They write the gradients of
// what is outside as if they were a part of the graph: the pass has counted them.
func (p *pass) again(n *node, c *checkpoint) (err error) {
	s := p.s
	s.inScope("when its Checkpoint was passed through", func() {
		var y *Variable
		var part *section
		from := s.nodes
		c.checkVersions() // the pass itself runs functions that may write what this one reads
		random := s.random
		s.random = c.random
		defer func() { s.random = random }()
		c.thawed(n.in, func() {
			s.repeating(func() { s.recording(func() { y = c.f(c.x) }) })
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
		y.node.grad, n.grad = n.grad, device.Tensor{}
		err = p.throughAll(part.nodes)
	})
	return err
}

// thawed runs f with those leaves of the first run that were frozen since as they
// were then, so that f records the same. The pass finds them frozen again, as it
// does the leaves of any graph.
func (c *checkpoint) thawed(in []input, f func()) {
	for _, v := range in {
		if idle := v.idle; c.first.uses[idle].times > 0 {
			v.node, v.idle = idle, nil
			defer func() { v.node, v.idle = nil, idle }()
		}
	}
	f()
}

// section is the part of a graph that leads to one result and was recorded from
// some point on.
type section struct {
	nodes     []*node     // of results, the last applied first
	outside   []*Variable // inputs from before, and leaves, that need a gradient: once for each use
	observers []Observer  // of results
}

// reads are the operands of the operations in p that were not made in sc, the scope
// that they were recorded in, each once for a version of it. It panics with a [*GraphError] where one is a gradient.
func (p *section) reads(sc *scope) (reads []read) {
	type key struct {
		mem     *block
		version uint64
	}
	seen := map[key]bool{}
	add := func(v input, op string) {
		if v.grad {
			panic(&GraphError{Call: "Checkpoint", Variable: v.String(),
				Reason: "it is a gradient, which the backward pass may write before it runs the function again: give the function a copy, such as MulScalar(v, 1)"})
		}
		k := key{v.mem, v.version}
		if v.mem.scope != sc && v.mem.freed == "" && !seen[k] {
			seen[k] = true
			reads = append(reads, read{v, op})
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

// sectionOf is what leads to root and was recorded after node number from. It
// leaves alone what a running pass has noted in the graph.
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

// latestFirst orders nodes as a pass goes through them. An operation is applied
// after its inputs were made, so the order is topological, and the same on
// every run.
func latestFirst(a, b *node) int { return cmp.Compare(b.number, a.number) }

// outline is what has to be the same when a section is computed again.
type outline struct {
	ops  []operation // in the order of nodes
	uses map[*node]use
}

type operation struct {
	name string
	out  device.Tensor // its type and shape
}

func (o operation) String() string { return fmt.Sprintf("%s %v", o.name, o.out) }

// use is how often something outside is used.
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

// compare returns a [*RecomputeError] when the second outline is not as the
// first.
func (o outline) compare(again outline) error {
	n, m := len(o.ops), len(again.ops)
	if n != m {
		return &RecomputeError{What: "the number of operations", First: fmt.Sprint(n), Again: fmt.Sprint(m)}
	}
	for i := range slices.Backward(o.ops) { // in the order of their application
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

// RecomputeError says that a function given to [Checkpoint] did not compute the
// same when it was run again. It fails the backward pass.
type RecomputeError struct {
	What         string // "operation 2 of 5"
	First, Again string // what it was in the first run and in the second
}

func (e *RecomputeError) Error() string {
	return fmt.Sprintf("autograd: a checkpointed function has to compute the same again: %s was %s, and now is %s", e.What, e.First, e.Again)
}
