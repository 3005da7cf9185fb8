package ddp

import (
	"context"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/internal/buckets"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
	"github.com/goddp/goddp/nn"
)

// value is a parameter or a buffer.
type value interface {
	Name() string
	Shape() device.Shape
	DType() device.DType
	Var() *autograd.Variable
}

// listed describes values for the comparison between ranks.
func listed[V value](values []V) []reducer.Param {
	var out []reducer.Param
	for _, v := range values {
		out = append(out, reducer.Param{Name: v.Name(), Shape: v.Shape(), DType: v.DType()})
	}
	return out
}

// trained describes parameters and whether they are frozen. Ranks must agree on this, because the buckets
// have no place for frozen parameters.
func trained(params []*nn.Parameter) buckets.List {
	list := buckets.Listed("parameter", listed(params))
	for i, p := range params {
		if p.Frozen() {
			list.Items[i] += ", frozen,"
		}
	}
	return list
}

func variables[V value](values []V) []*autograd.Variable {
	var out []*autograd.Variable
	for _, v := range values {
		out = append(out, v.Var())
	}
	return out
}

// masters returns the masters ([nn.Parameter.Master]) of the parameters that have a master on all ranks. If a
// parameter has a master on only some ranks, these ranks drop it, because all ranks must start with equal masters.
func masters(ctx context.Context, pg *comm.ProcessGroup, params []*nn.Parameter) (map[*nn.Parameter]*autograd.Variable, error) {
	var half []*nn.Parameter
	var has []bool
	for _, p := range params {
		if p.DType().Size() == 2 {
			half, has = append(half, p), append(has, p.KeepsMaster())
		}
	}
	has, err := buckets.OnAll(ctx, pg, has)
	if err != nil {
		return nil, err
	}
	kept := map[*nn.Parameter]*autograd.Variable{}
	for i, p := range half {
		if has[i] {
			kept[p] = p.Master()
		} else {
			p.SetMaster(nil)
		}
	}
	return kept, nil
}

// broadcast sets the state on all ranks to the state of the rank `from`. On that rank too it counts as an in-place
// write, so that a graph that uses the state becomes invalid on all ranks or on none.
func broadcast(pg *comm.ProcessGroup, name string, state []*autograd.Variable, from int) *comm.Work {
	var written []device.Tensor
	for _, v := range state {
		v.BumpVersion()
		written = append(written, v.Tensor())
	}
	return pg.With(&comm.CallOptions{Name: name}).Coalesce(func(g *comm.ProcessGroup) {
		for _, t := range kernels.Distinct(written) {
			g.Broadcast(t, from)
		}
	})
}
