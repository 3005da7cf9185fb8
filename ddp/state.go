package ddp

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
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

// trained describes parameters, whether they are frozen, and whether they have Float32 values from before a
// rounding. Ranks must agree on this, because the buckets have no place for frozen parameters, and New
// broadcasts those values.
func trained(params []*nn.Parameter) reducer.List {
	list := reducer.Listed("parameter", listed(params))
	for i, p := range params {
		if p.Frozen() {
			list.Items[i] += ", frozen,"
		}
		if p.Master() != nil {
			list.Items[i] += ", with a master,"
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

// broadcast sets state on all ranks to that of rank from. It counts as an in-place write on rank from too,
// so that a graph that uses the state becomes invalid on all ranks or on none.
func broadcast(pg *comm.ProcessGroup, name string, state []*autograd.Variable, from int) *comm.Work {
	var written []device.Tensor
	for _, v := range state {
		v.BumpVersion()
		written = append(written, v.Tensor())
	}
	return pg.With(comm.CallOptions{Name: name}).Coalesce(func(g *comm.ProcessGroup) {
		for _, t := range kernels.Distinct(written) {
			g.Broadcast(t, from)
		}
	})
}
