package ddpgorgonia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	G "gorgonia.org/gorgonia"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/gradsink"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// Options are the options of New. The zero value is the default. They are the same on every rank.
type Options struct {
	// BucketCapMB is the size in MiB at which a bucket is closed. 0 means 25, and 1 for the first
	// bucket, so that communication starts early.
	BucketCapMB float64
	// FirstBucketCapMB is the cap of the first bucket; 0 means BucketCapMB.
	FirstBucketCapMB float64
	// SkipInitSync makes New keep the learnables' values. The program must have made them equal on
	// all ranks.
	SkipInitSync bool
	// CheckNonFinite checks the gradients for NaN and Inf before they are reduced. Every rank then
	// gets a [*reducer.NonFiniteError] that names the ranks with such gradients.
	CheckNonFinite bool
	// Hook reduces the buckets instead of an all-reduce.
	Hook reducer.Hook
}

// Model averages the gradients of an expression graph's learnables over a process group. One
// goroutine drives it.
type Model struct {
	pg         *comm.ProcessGroup
	graph      *G.ExprGraph
	learnables []*learnable
	reducer    *buckets.Reducer
	trace      *profile.Recorder
	noSync     bool
	hasReduced bool // the last pass reduced, so the next pass overwrites the gradients
	pass       *pass
}

// New makes a model of the learnables of one graph: input nodes with values of float32 or float64.
// It checks that they are equal in number, order, name, shape and type on all ranks, and sets their
// values to those of rank 0, in place. Afterwards the program builds the graph, which uses them
// through [Model.Use]. All ranks call New, in the same order as their other collectives. The
// group's timeout bounds each collective that New makes.
//
// Gorgonia computes on the CPU: New returns an error if the host cannot address the memory of the
// group's device.
func New(pg *comm.ProcessGroup, learnables G.Nodes, opts *Options) (*Model, error) {
	if pg == nil {
		return nil, fmt.Errorf("ddpgorgonia: %w", comm.ErrNoGroup)
	}
	o := *cmp.Or(opts, &Options{})
	m := &Model{pg: pg, trace: profile.Of(pg.Device())}
	if err := m.init(pg.Context(), learnables, o); err != nil {
		return nil, fmt.Errorf("ddpgorgonia: %w", err)
	}
	return m, nil
}

func (m *Model) init(ctx context.Context, nodes G.Nodes, o Options) error {
	if err := comm.Agree(ctx, m.pg, m.adopt(nodes)); err != nil {
		return err
	}
	params := make([]reducer.Param, len(m.learnables))
	for i, l := range m.learnables {
		params[i] = reducer.Param{Name: l.Name(), Shape: l.Shape(), DType: l.DType()}
	}
	var err error
	m.reducer, err = buckets.New(ctx, m.pg, params, &buckets.Options{
		BucketCapMB: o.BucketCapMB, FirstBucketCapMB: o.FirstBucketCapMB, CheckNonFinite: o.CheckNonFinite, Hook: o.Hook,
		Alike: []buckets.List{{What: "option", Items: []string{fmt.Sprint("SkipInitSync ", o.SkipInitSync)}}},
	})
	if err != nil {
		return err
	}
	for i, l := range m.learnables {
		gradsink.Set(l.Var(), &sink{m.reducer, i}, m.reducer.State(i))
	}
	if o.SkipInitSync {
		return nil
	}
	return m.pg.With(&comm.CallOptions{Name: "initial parameters"}).Coalesce(func(g *comm.ProcessGroup) {
		for _, l := range m.learnables {
			g.Broadcast(l.Var().Tensor(), 0)
		}
	}).Wait(ctx)
}

// adopt makes learnables of the program's nodes.
func (m *Model) adopt(nodes G.Nodes) error {
	if len(nodes) == 0 {
		return errors.New("the model has no learnables, want at least one")
	}
	if probe, err := m.pg.Alloc(1); err != nil {
		return err
	} else if probe.Host() == nil {
		return fmt.Errorf("the group's device is %v, but Gorgonia computes on the CPU: set "+jobenv.DeviceVar+"=cpu", m.pg.Device())
	}
	m.graph = nodes[0].Graph()
	seen := map[*G.Node]bool{}
	for _, n := range nodes {
		switch {
		case n.Graph() != m.graph:
			return fmt.Errorf("learnables %q and %q belong to different graphs, want one graph", nodes[0].Name(), n.Name())
		case seen[n]:
			return fmt.Errorf("learnable %q is given twice", n.Name())
		}
		seen[n] = true
		l, err := newLearnable(m.pg.Device(), n)
		if err != nil {
			return err
		}
		m.learnables = append(m.learnables, l)
	}
	return nil
}

// building guards a counter that all of Gorgonia's graphs share.
var building sync.Mutex

// Build calls f, which builds a graph. Only one call runs at a time: Gorgonia has one counter for
// the nodes of all graphs, so ranks within one process must not build at the same time. f must call
// neither Build nor NewTapeMachine, which takes the same lock. A process with one rank does not
// need Build.
func Build(f func() error) error {
	building.Lock()
	defer building.Unlock()
	return f()
}

// Use returns the node that the graph must use in place of w, one of the learnables: it has w's
// value, and the model averages its gradient. Call it where the graph uses w, and not for all
// learnables beforehand: Gorgonia computes gradients in the reverse of the order in which nodes
// were made, and would reduce all of them after the backward pass. All calls for one learnable
// return the same node.
//
// Use panics with a [*GraphError] if w is not a learnable of the model.
func (m *Model) Use(w *G.Node) *G.Node {
	i := slices.IndexFunc(m.learnables, func(l *learnable) bool { return l.node == w })
	if i < 0 {
		panic(&GraphError{w.Name(), "is not one of the model's learnables"})
	}
	l := m.learnables[i]
	if l.use == nil {
		l.use = G.Must(G.ApplyOp(&use{op{m, i}}, w))
	}
	return l.use
}

// Parameters returns the learnables as parameters for package optim and nn.State. They share the
// memory of the values that the learnables had when New was called. Their gradients are views of
// the buckets.
func (m *Model) Parameters() []*nn.Parameter {
	var params []*nn.Parameter
	for _, l := range m.learnables {
		params = append(params, l.Parameter)
	}
	return params
}

// Stats returns the statistics of the reducer on this rank, and its buckets.
func (m *Model) Stats() reducer.Stats { return m.reducer.Stats() }

// Stopping reports whether all ranks stop now, because a process received SIGINT or SIGTERM: see
// [github.com/goddp/goddp/ddp.Model.Stopping].
func (m *Model) Stopping() bool {
	sig := m.reducer.Stopping()
	if sig == 0 {
		return false
	}
	m.pg.AcceptStop(sig)
	return true
}

// NoSync calls f. Runs within f accumulate gradients and reduce nothing. The first run after f
// reduces the sum.
func (m *Model) NoSync(f func() error) error {
	was := m.noSync
	m.noSync = true
	defer func() { m.noSync = was }()
	return f()
}
