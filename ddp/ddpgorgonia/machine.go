package ddpgorgonia

import (
	"context"
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/profile"
)

// Machine is a tape machine whose runs average a model's gradients. It is a
// [G.VM], driven by the model's goroutine.
type Machine struct {
	model           *Model
	vm              G.VM
	hasCheckedGrads bool // that learnables' gradients are in the buckets
}

var _ G.VM = (*Machine)(nil)

// pass is one run of a machine. The machine's own goroutine, on which operations
// run, writes it while RunAll waits.
type pass struct {
	turned profile.Moment // where the cost was there; nil where no trace is written
	err    error          // what ended the tape, if an operation of this package did
	thrown any            // what that panicked with, if it did
}

// NewTapeMachine differentiates cost for the model's learnables, compiles what
// that and the graph's other results so far (whatever nothing else uses: what is
// read, an accuracy) are computed from, and makes a tape machine for it: in one
// call what programs do by Grad, CompileFunction and NewTapeMachine. Other
// gradients, such as that for the input, are not computed. A graph is
// differentiated once.
//
// Among opts must not be BindDualValues or TraceExec, which copy gradients before
// they are reduced: the first run is a [*GraphError] then. All ranks call
// NewTapeMachine; an error on one is an error on all.
func (m *Model) NewTapeMachine(cost *G.Node, opts ...G.VMOpt) (*Machine, error) {
	t := &Machine{model: m}
	err := Build(func() (err error) {
		t.vm, err = m.compile(cost, opts)
		return err
	})
	if err := comm.Agree(context.Background(), m.pg, err); err != nil {
		return nil, fmt.Errorf("ddpgorgonia: %w", err)
	}
	return t, nil
}

// compile makes the machine for cost.
func (m *Model) compile(cost *G.Node, opts []G.VMOpt) (G.VM, error) {
	if cost.Graph() != m.graph {
		return nil, &GraphError{cost.Name(), "is the cost, and of another graph than the learnables"}
	}
	var wrt, uses G.Nodes
	keep := &keep{op: op{m, -1}}
	for _, l := range m.learnables {
		switch {
		case l.use == nil:
			return nil, &GraphError{l.Name(), "is a learnable that nothing uses"}
		case l.node.Deriv() != nil:
			return nil, &GraphError{l.Name(), "has a gradient in this graph already"}
		}
		wrt, uses, keep.types = append(wrt, l.node), append(uses, l.use), append(keep.types, l.use.Type())
	}
	m.warnOfOrder(uses)
	results := results(m.graph)
	turned, err := G.ApplyOp(&turn{op{m, -1}}, cost)
	if err != nil {
		return nil, err
	}
	grads, err := G.Grad(turned, wrt...)
	if err != nil {
		return nil, fmt.Errorf("differentiating %v: %w", cost, err)
	}
	for i, g := range grads {
		if _, ok := g.Op().(*ready); !ok {
			return nil, &GraphError{m.learnables[i].Name(), "is used other than through Use"}
		}
	}
	kept, err := G.ApplyOp(keep, uses...)
	if err != nil {
		return nil, err
	}
	if err := distinct(m.graph); err != nil {
		return nil, err
	}
	results = append(append(append(results, turned), grads...), kept)
	program, registers, err := G.CompileFunction(m.graph, wrt, results)
	if err != nil {
		return nil, fmt.Errorf("compiling for %v: %w", cost, err)
	}
	return G.NewTapeMachine(m.graph, append(opts[:len(opts):len(opts)], G.WithPrecompiled(program, registers))...), nil
}

// warnOfOrder says so where all learnables were made one behind the other before
// anything used them: see [Model.Use].
func (m *Model) warnOfOrder(uses G.Nodes) {
	first, last := uses[0].ID(), uses[0].ID()
	for _, n := range uses {
		first, last = min(first, n.ID()), max(last, n.ID())
	}
	if len(uses) > 2 && last-first == int64(len(uses)-1) {
		m.pg.Log().Warn("gradients will be reduced behind the backward pass: call Use where a learnable is used, not beforehand")
	}
}

// results are the nodes that are computed and that no other uses.
func results(g *G.ExprGraph) G.Nodes {
	var nodes G.Nodes
	for _, n := range g.AllNodes() {
		if g.From(n.ID()).Len() > 0 && g.To(n.ID()).Len() == 0 {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// distinct finds nodes with equal hashes, which Gorgonia's compiler would take
// for one: hashes have 32 bits, and 10000 nodes a pair of equal ones in one of
// a hundred graphs.
func distinct(g *G.ExprGraph) error {
	seen := map[uint32]*G.Node{}
	for _, n := range g.AllNodes() {
		if other := seen[n.Hashcode()]; other != nil {
			return &GraphError{n.Name(), fmt.Sprintf("has the same hash as %q, which Gorgonia would take for the same: rename an input", other.Name())}
		}
		seen[n.Hashcode()] = n
	}
	return nil
}

// RunAll runs the whole tape: what it computes, and the averages of the gradients
// over the ranks, which are reduced while the tape is still running. It returns
// when they are there, as the learnables' Grad. Within [Model.NoSync] they are
// sums so far, of this rank.
//
// Its error is the machine's own, or why the gradients must not be used: see the
// package documentation. A panic of what computes a gradient is one of RunAll's.
func (t *Machine) RunAll() error {
	m := t.model
	start := m.mark()
	err := m.begin()
	if err == nil {
		err = t.vm.RunAll()
	}
	p, turned := m.pass, m.pass.turned
	m.pass = nil
	if turned != nil && start != nil {
		m.trace.Add(profile.Span{Track: profile.Compute, Name: "forward", Begin: start, End: turned})
		m.span("backward", turned, profile.Arg{Name: "reduces", Value: !m.noSync}, profile.Arg{Name: "buckets", Value: len(m.reducer.Stats().Buckets)})
	}
	if p.err != nil {
		err = p.err // what the machine makes of it has no Unwrap
	}
	// The other ranks are told, whatever went wrong here.
	finished := m.reducer.Finish(context.Background(), err) // bounded by the calls' own timeouts
	if err == nil && finished == nil && !t.hasCheckedGrads {
		t.hasCheckedGrads = true
		err = m.check()
	}
	if p.thrown != nil {
		panic(p.thrown)
	}
	if err == nil || errors.Is(finished, err) {
		err = finished
	} else {
		err = errors.Join(err, finished)
	}
	if err != nil {
		t.vm.Reset() // a tape that stopped would go on where it did
		return fmt.Errorf("ddpgorgonia: %w", err)
	}
	return nil
}

// begin begins a pass. One behind a pass that reduced overwrites the gradients;
// one that failed has left none.
func (m *Model) begin() (err error) {
	if m.reduced {
		for i := range m.learnables {
			m.reducer.Zero(i)
		}
	}
	m.reduced = !m.noSync
	m.pass = &pass{}
	m.reducer.Begin(!m.noSync, nil)
	for _, l := range m.learnables {
		err = errors.Join(err, l.follow())
	}
	return err
}

// check tells whether the learnables' gradients are the buckets' memory.
func (m *Model) check() error {
	for _, l := range m.learnables {
		if g, err := l.node.Grad(); err != nil || g != l.grad {
			return &GraphError{l.Name(), "has a gradient that was copied before it was reduced: make the machine without BindDualValues and TraceExec, and the node without WithGrad"}
		}
	}
	return nil
}

// Reset gets the machine ready for the next run, as that of all machines of
// Gorgonia does.
func (t *Machine) Reset() { t.vm.Reset() }

// Close frees what the machine holds. The model stays.
func (t *Machine) Close() error { return t.vm.Close() }

// GraphError says what a model cannot do with a graph.
type GraphError struct {
	Node   string // by name
	Reason string // that it "is", or "has"
}

func (e *GraphError) Error() string { return fmt.Sprintf("%q %s", e.Node, e.Reason) }
