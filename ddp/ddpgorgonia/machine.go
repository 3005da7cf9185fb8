package ddpgorgonia

import (
	"errors"
	"fmt"

	G "gorgonia.org/gorgonia"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/profile"
)

// Machine is a tape machine whose runs average a model's gradients. It is a [G.VM]. The goroutine
// that drives the model drives it too.
type Machine struct {
	model           *Model
	vm              G.VM
	hasCheckedGrads bool // a run has verified that the learnables' gradients are views of the buckets
}

var _ G.VM = (*Machine)(nil)

// pass is the state of one run of a machine. Operations write it on the machine's goroutine while
// RunAll waits.
type pass struct {
	turned profile.Moment // the end of the forward pass; nil if no trace is written
	err    error          // the error of the operation of this package that ended the tape
	thrown any            // the value with which that operation panicked
}

// NewTapeMachine differentiates cost with respect to the model's learnables, and makes a tape
// machine. The machine computes the gradients and the graph's other results: the nodes that no
// other node uses, such as reads or an accuracy. NewTapeMachine replaces Grad, CompileFunction and
// NewTapeMachine. It does not compute other gradients, such as that of the input. A graph can be
// differentiated only once.
//
// opts must not contain BindDualValues or TraceExec, which copy gradients before they are reduced:
// the first run then returns a [*GraphError]. All ranks call NewTapeMachine. An error on one rank
// is an error on all.
func (m *Model) NewTapeMachine(cost *G.Node, opts ...G.VMOpt) (*Machine, error) {
	t := &Machine{model: m}
	err := Build(func() (err error) {
		t.vm, err = m.compile(cost, opts)
		return err
	})
	if err := comm.Agree(m.pg.Context(), m.pg, err); err != nil {
		return nil, fmt.Errorf("ddpgorgonia: %w", err)
	}
	return t, nil
}

// compile makes the machine for cost.
func (m *Model) compile(cost *G.Node, opts []G.VMOpt) (G.VM, error) {
	if cost.Graph() != m.graph {
		return nil, &GraphError{cost.Name(), "is the cost, but belongs to another graph than the learnables"}
	}
	var wrt, uses G.Nodes
	keep := &keep{op: op{m, -1}}
	for _, l := range m.learnables {
		switch {
		case l.use == nil:
			return nil, &GraphError{l.Name(), "is a learnable that the graph does not use: build the graph with model.Use(w) in place of w"}
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
			return nil, &GraphError{m.learnables[i].Name(), "is used directly: build the graph with model.Use(w) in place of w"}
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

// warnOfOrder logs a warning if the program called [Model.Use] for all learnables before the graph
// used any of them.
func (m *Model) warnOfOrder(uses G.Nodes) {
	first, last := uses[0].ID(), uses[0].ID()
	for _, n := range uses {
		first, last = min(first, n.ID()), max(last, n.ID())
	}
	if len(uses) > 2 && last-first == int64(len(uses)-1) {
		m.pg.Log().Warn("gradients will be reduced after the backward pass: call Use where the graph uses a learnable, not beforehand")
	}
}

// results returns the nodes that are computed and that no other node uses.
func results(g *G.ExprGraph) G.Nodes {
	var nodes G.Nodes
	for _, n := range g.AllNodes() {
		if g.From(n.ID()).Len() > 0 && g.To(n.ID()).Len() == 0 {
			nodes = append(nodes, n)
		}
	}
	return nodes
}

// distinct returns an error if two nodes have equal hashes, because Gorgonia's compiler would treat
// them as one node. Hashes have 32 bits: about one in a hundred graphs of 10000 nodes has such a
// pair.
func distinct(g *G.ExprGraph) error {
	seen := map[uint32]*G.Node{}
	for _, n := range g.AllNodes() {
		if other := seen[n.Hashcode()]; other != nil {
			return &GraphError{n.Name(), fmt.Sprintf("has the same hash as %q, so Gorgonia would treat them as one node: rename an input", other.Name())}
		}
		seen[n.Hashcode()] = n
	}
	return nil
}

// RunAll runs the whole tape. It computes the graph and averages the gradients over the ranks,
// while the tape still runs. It returns when the averages are complete, in the learnables' Grad.
// Within [Model.NoSync] Grad is the sum of this rank's gradients so far.
//
// RunAll returns the machine's error, or an error that says why the gradients must not be used: see the package
// documentation. If an operation that computes a gradient panics, RunAll panics.
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
		err = p.err // the machine's error has no Unwrap
	}
	// Finish tells the other ranks if this pass has failed.
	finished := m.reducer.Finish(m.pg.Context(), err)
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
		t.vm.Reset() // otherwise the next run would continue the stopped tape
		return fmt.Errorf("ddpgorgonia: %w", err)
	}
	return nil
}

// begin starts a pass. If the previous pass reduced, this pass overwrites the gradients; otherwise it adds to them.
func (m *Model) begin() (err error) {
	if m.hasReduced {
		for i := range m.learnables {
			m.reducer.State(i).Zero()
		}
	}
	m.hasReduced = !m.noSync
	m.pass = &pass{}
	m.reducer.Begin(!m.noSync, nil)
	for _, l := range m.learnables {
		err = errors.Join(err, l.follow())
	}
	return err
}

// check returns an error if the learnables' gradients are not views of the buckets.
func (m *Model) check() error {
	for _, l := range m.learnables {
		if g, err := l.node.Grad(); err != nil || g != l.grad {
			return &GraphError{l.Name(), "has a gradient that was copied before it was reduced: make the machine without BindDualValues and TraceExec, and the node without WithGrad"}
		}
	}
	return nil
}

// Reset prepares the machine for the next run, as for all machines of Gorgonia.
func (t *Machine) Reset() { t.vm.Reset() }

// Close frees the machine's resources. The model remains usable.
func (t *Machine) Close() error { return t.vm.Close() }

// GraphError says why a model cannot train a graph.
type GraphError struct {
	Node   string // the name of the node
	Reason string // a predicate that begins with "is" or "has"
}

func (e *GraphError) Error() string { return fmt.Sprintf("%q %s", e.Node, e.Reason) }
