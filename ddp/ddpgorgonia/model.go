package ddpgorgonia

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	G "gorgonia.org/gorgonia"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/profile"
)

// Options are how a Model is made. The zero value is the good default. They
// are the same on every rank.
type Options struct {
	// BucketCapMB is the size, in MiB, at which a bucket is closed; 0: 25, and 1
	// for the first, so that communication starts early.
	BucketCapMB float64
	// FirstBucketCapMB is the first bucket's own; 0: as BucketCapMB says.
	FirstBucketCapMB float64
	// SkipInitSync has New leave the learnables' values as they are: the
	// program has made them equal on all ranks.
	SkipInitSync bool
	// CheckNonFinite looks for NaN and Inf in the gradients before they are
	// reduced: a [*reducer.NonFiniteError] on every rank says whose they are.
	CheckNonFinite bool
	// Hook reduces the buckets in place of an all-reduce.
	Hook reducer.Hook
}

// Model is the learnables of an expression graph, whose gradients are averaged
// over a process group. It is driven by one goroutine.
type Model struct {
	pg         *comm.ProcessGroup
	graph      *G.ExprGraph
	learnables []*learnable
	reducer    *reducer.Reducer
	trace      *profile.Recorder
	noSync     bool
	reduced    bool // the last pass did: the next one begins gradients anew
	pass       *pass
}

// New makes the learnables of one graph a model: input nodes with values of
// float32 or float64. They are checked to be alike on all ranks, in their order,
// and their values are set to those of rank 0, in place. What uses them is built
// afterwards, through [Model.Use]. All ranks call it, in the same order as their
// other collectives; each of those that it makes is bounded by the group's
// timeout.
//
// Gorgonia computes on the host: a group whose memory the host cannot address is
// an error.
func New(pg *comm.ProcessGroup, learnables G.Nodes, opts *Options) (*Model, error) {
	if pg == nil {
		return nil, fmt.Errorf("ddpgorgonia: %w", comm.ErrNoGroup)
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	m := &Model{pg: pg, trace: profile.Of(pg.Device())}
	if err := m.init(context.Background(), learnables, o); err != nil { // its calls have deadlines of their own
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
	m.reducer, err = reducer.New(ctx, m.pg, params, &reducer.Options{
		BucketCapMB: o.BucketCapMB, FirstBucketCapMB: o.FirstBucketCapMB, CheckNonFinite: o.CheckNonFinite, Hook: o.Hook,
		Alike: []reducer.List{{What: "option", Items: []string{fmt.Sprint("SkipInitSync ", o.SkipInitSync)}}},
	})
	if err != nil {
		return err
	}
	for i, l := range m.learnables {
		l.Var().SetGradSink(&sink{m.reducer, i})
	}
	if o.SkipInitSync {
		return nil
	}
	return m.pg.With(comm.CallOptions{Name: "initial parameters"}).Coalesce(func(g *comm.ProcessGroup) {
		for _, l := range m.learnables {
			g.Broadcast(l.Var().Tensor(), 0)
		}
	}).Wait(ctx)
}

// adopt makes the program's nodes learnables.
func (m *Model) adopt(nodes G.Nodes) error {
	if len(nodes) == 0 {
		return errors.New("no learnables")
	}
	if probe, err := m.pg.Alloc(1); err != nil {
		return err
	} else if probe.Host() == nil {
		return fmt.Errorf("the group's device is %v, and Gorgonia computes on the host: set GODDP_DEVICE=cpu", m.pg.Device())
	}
	m.graph = nodes[0].Graph()
	seen := map[*G.Node]bool{}
	for _, n := range nodes {
		switch {
		case n.Graph() != m.graph:
			return fmt.Errorf("learnables %q and %q are of different graphs", nodes[0].Name(), n.Name())
		case seen[n]:
			return fmt.Errorf("learnable %q is there twice", n.Name())
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

// building serves Build: it guards a counter that all of Gorgonia's graphs share.
var building sync.Mutex

// Build runs f, which builds a graph. Gorgonia counts nodes of all graphs
// together, so that ranks within one process must not build at the same time. f
// calls neither Build nor NewTapeMachine, which does the same. A process of one
// rank has no need of it.
func Build(f func() error) error {
	building.Lock()
	defer building.Unlock()
	return f()
}

// Use is what a graph uses in place of w, one of the learnables: its value, as it
// is, whose gradient is averaged. Call it where w is used, while the graph is being
// built, and not for all learnables beforehand: Gorgonia computes what belongs to
// a gradient in the order, reversed, in which nodes were made, and would reduce
// all of them behind the backward pass. Several calls for one learnable return one
// node.
//
// It panics with a [*GraphError] where w is no learnable of the model.
func (m *Model) Use(w *G.Node) *G.Node {
	i := slices.IndexFunc(m.learnables, func(l *learnable) bool { return l.node == w })
	if i < 0 {
		panic(&GraphError{w.Name(), "is none of the model's learnables"})
	}
	l := m.learnables[i]
	if l.use == nil {
		l.use = G.Must(G.ApplyOp(&use{op{m, i}}, w))
	}
	return l.use
}

// Parameters are the learnables for this project's own optimizers and for
// nn.State: they share the memory of the values that the learnables had when New
// was called, and their gradients are those in the buckets.
func (m *Model) Parameters() []*nn.Parameter {
	var params []*nn.Parameter
	for _, l := range m.learnables {
		params = append(params, l.Parameter)
	}
	return params
}

// Stats returns what the reducer did so far on this rank, and its buckets.
func (m *Model) Stats() reducer.Stats { return m.reducer.Stats() }

// Stopping reports whether all ranks stop here, as somebody asked them to by SIGINT or
// SIGTERM: see [github.com/goddp/goddp/ddp.Model.Stopping].
func (m *Model) Stopping() bool {
	sig := m.reducer.Stopping()
	if sig == 0 {
		return false
	}
	m.pg.AcceptStop(sig)
	return true
}

// NoSync runs f, within which machines accumulate gradients and reduce nothing.
// The first run after it reduces the sum.
func (m *Model) NoSync(f func() error) error {
	was := m.noSync
	m.noSync = true
	defer func() { m.noSync = was }()
	return f()
}
