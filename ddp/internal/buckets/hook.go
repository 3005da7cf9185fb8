package buckets

import (
	"fmt"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// hookName returns the name by which the ranks compare their hooks: the result of the hook's String method
// or, if the hook has no such method, the hook's type.
func hookName(h reducer.Hook) string {
	if s, ok := h.(fmt.Stringer); ok {
		return s.String()
	}
	return fmt.Sprintf("%T", h)
}

// start starts the reduction of bucket i, by the hook or by an all-reduce. The parameter `after` is the
// event after which the gradients are final, as in GradBucket.After.
func (r *Reducer) start(i int, after device.Event) reducer.Reduction {
	if b := &r.buckets[i]; r.hook == nil {
		return r.pg.With(&comm.CallOptions{Name: b.name, After: after}).AllReduce(b.flat, r.op)
	}
	return r.hook.Reduce(r.offered(i, after))
}

// offered returns bucket i as the GradBucket that the hook gets. The parameter `after` becomes
// GradBucket.After.
func (r *Reducer) offered(i int, after device.Event) reducer.GradBucket {
	b := &r.buckets[i]
	if b.hookParams == nil {
		for _, p := range b.params {
			b.hookParams, b.hookGrads = append(b.hookParams, r.params[p]), append(b.hookGrads, r.grads[p])
		}
	}
	return reducer.GradBucket{
		Index: i, Last: i == len(r.buckets)-1, Rebuilt: r.stats.Rebuilt != nil, Name: b.name, Rank: r.pg.Rank(), Group: r.pg, Op: r.op,
		After: after, Flat: b.flat, Params: b.hookParams, Grads: b.hookGrads,
	}
}
