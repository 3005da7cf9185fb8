package extensions

import (
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
)

// counter is a hook that averages as ddp does by itself, and counts bytes.
type counter struct{ bytes int }

var _ reducer.Hook = (*counter)(nil)

func (c *counter) Reduce(b reducer.GradBucket) reducer.Reduction {
	c.bytes += b.Flat.Bytes()
	return b.Group.With(&comm.CallOptions{Name: b.Name, After: b.After}).AllReduce(b.Flat, b.Op)
}
