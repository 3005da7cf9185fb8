package ddp

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// launches records the order in which each rank of a job starts calls, over all groups.
type launches struct {
	mu    sync.Mutex
	order map[string][]string // by rank: the calls, each with its group
}

// grouped records the calls of one rank in one group. The name of the first call identifies the
// rank.
type grouped struct {
	backend.Backend
	all         *launches
	rank, group string
}

func (g *grouped) Start(c *backend.Call) (backend.Task, error) {
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	if g.rank == "" {
		g.rank, g.group, _ = strings.Cut(c.Name, "/")
	} else {
		g.all.order[g.rank] = append(g.all.order[g.rank], fmt.Sprintf("%s: %s %s", g.group, c.Kind, c.Name))
	}
	return g.Backend.Start(c)
}

// summed returns the sum over the ranks of a group. Its backward passes the gradient on unchanged.
type summed struct{ pg *comm.ProcessGroup }

func (summed) Name() string                         { return "summed" }
func (summed) Shape(in []device.Shape) device.Shape { return in[0] }
func (f summed) Forward(c *autograd.Call) error {
	if err := c.Kernels.Copy(c.Stream, c.Out, c.In[0]); err != nil {
		return err
	}
	return f.sum(c.Out)
}
func (f summed) sum(t device.Tensor) error {
	return f.pg.With(&comm.CallOptions{Name: "partial sums"}).AllReduce(t, comm.Sum).Wait(context.Background())
}
func (summed) Backward(c *autograd.Call, _ int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	return c.Kernels.Axpby(c.Stream, dst, acc, g)
}

// spread is an identity whose backward sums the gradient over the ranks of a group.
type spread struct{ summed }

func (f spread) Forward(c *autograd.Call) error { return c.Kernels.Copy(c.Stream, c.Out, c.In[0]) }
func (f spread) Backward(c *autograd.Call, i int, dst device.Tensor, acc device.Accum, g device.Tensor) error {
	total, err := c.New(g.DType, g.Shape...)
	if err == nil {
		err = c.Kernels.Copy(c.Stream, total, g)
	}
	if err == nil {
		err = f.sum(total)
	}
	if err != nil {
		return err
	}
	return f.summed.Backward(c, i, dst, acc, total)
}

// halved is w·v·u·x. Each rank of a row holds a part of w and v; all ranks hold u. It sums over
// the row in the forward pass and in the backward pass.
type halved struct {
	u, v, w *nn.Parameter
	row     *comm.ProcessGroup
}

func (m halved) Parameters() []*nn.Parameter { return []*nn.Parameter{m.u, m.v, m.w} }
func (m halved) Forward(x *autograd.Variable) *autograd.Variable {
	h := autograd.Apply(spread{summed{m.row}}, autograd.Mul(m.u.Var(), x))
	return autograd.Apply(summed{m.row}, autograd.Mul(m.w.Var(), autograd.Mul(m.v.Var(), h)))
}

// One step uses two kinds of groups, the rows and columns of a grid of ranks: the model is divided
// over a row, the batch over a column. Autograd runs the same operations in the same order on every
// rank, so all ranks start all calls of both groups in one order. GPUs require this of groups that
// share them.
func TestGroupsShareOneLaunchOrder(t *testing.T) {
	const rows, cols = 2, 2
	all := &launches{order: map[string][]string{}}
	opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return &grouped{Backend: b, all: all} })
	commtest.OnGoroutines(t, rows*cols, opts, func(pg *comm.ProcessGroup) error {
		i, j := pg.Rank()/cols, pg.Rank()%cols
		row := must.New(pg.Split(t.Context(), i, 0))
		column := must.New(pg.Split(t.Context(), j, 0))
		names := []string{"row", "column"} // all ranks make the groups in this order, because Split waits for the peers
		for k, g := range []*comm.ProcessGroup{row, column} {
			call := comm.CallOptions{Name: fmt.Sprintf("rank %d/%s", pg.Rank(), names[k])}
			if err := g.With(&call).Barrier().Wait(t.Context()); err != nil {
				return err
			}
		}
		parameter := func(name string, x float32) *nn.Parameter {
			return nn.NewParameter(name, autograd.Scalar(pg.Device(), x))
		}
		v, w := []float32{3, 5}, []float32{7, 11}
		m := halved{parameter("u", 2), parameter("v", v[j]), parameter("w", w[j]), row}
		model := must.New(New(m, column, &Options{BucketCapMB: 1e-6}))
		x := []float32{1, 3} // the inputs of the two halves of the batch; their mean is 2
		for range 3 {
			// After the first pass rank 0 sends its order of gradients, once.
			y := model.Forward(autograd.Scalar(pg.Device(), x[i]))
			if err := y.Backward(nil); err != nil {
				return err
			}
			if got, want := y.Item(), float64((7*3+11*5)*2*x[i]); got != want {
				return fmt.Errorf("y is %v, want %v", got, want)
			}
			for p, want := range map[*nn.Parameter]float32{m.u: (7*3 + 11*5) * 2, m.v: w[j] * 2 * 2, m.w: v[j] * 2 * 2} {
				if got := p.Grad().Item(); got != float64(want) {
					return fmt.Errorf("the gradient of %s is %v, want %v", p.Name(), got, want)
				}
				p.Var().ZeroGrad()
			}
		}
		return nil
	})
	order := all.order["rank 0"]
	step := []string{
		"row: AllReduce partial sums", "column: AllReduce bucket 0", "column: AllReduce bucket 1",
		"row: AllReduce partial sums", "column: AllReduce bucket 2",
	}
	if n := len(order); n < 2*len(step) || !slices.Equal(order[n-2*len(step):], slices.Concat(step, step)) {
		t.Errorf("rank 0 started\n%s\nwant to end with twice\n%s", strings.Join(order, "\n"), strings.Join(step, "\n"))
	}
	for rank, theirs := range all.order {
		if !slices.Equal(theirs, order) {
			t.Errorf("%s started\n%s\nrank 0\n%s", rank, strings.Join(theirs, "\n"), strings.Join(order, "\n"))
		}
	}
	if len(all.order) != rows*cols {
		t.Errorf("%d ranks started calls", len(all.order))
	}
}
