package ddp

import (
	"context"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// SyncBatchNorm has every BatchNorm of m, in training, normalise by the samples of all ranks
// of pg: as one process would that has the whole batch, also where ranks have different
// numbers of samples. It returns how many there are. It is PyTorch's
// convert_sync_batchnorm, but changes the layers where they are. A nil pg ends it.
//
// Each of these layers communicates in its forward and its backward pass, so that all ranks
// make the same passes: [Lockstep] ends their loops, and not [Model.Join]. pg may be the
// group that [New] is given.
func SyncBatchNorm(m nn.Model, pg *comm.ProcessGroup) (layers int) {
	var peers autograd.BatchPeers
	if pg != nil {
		peers = &batchPeers{pg}
	}
	for part := range nn.Parts(m) {
		if l, ok := part.(*nn.BatchNormLayer); ok {
			l.Peers = peers
			layers++
		}
	}
	return layers
}

// batchPeers are the ranks of a group.
type batchPeers struct{ pg *comm.ProcessGroup }

func (p *batchPeers) Size() int { return p.pg.Size() }

func (p *batchPeers) Gather(dst, src device.Tensor) error {
	return p.pg.With(comm.CallOptions{Name: "moments of a batch"}).AllGather(dst, src).Wait(context.Background()) // bounded by the call's own timeout
}

func (p *batchPeers) Sum(t device.Tensor) error {
	return p.pg.With(comm.CallOptions{Name: "gradients of a batch's moments"}).AllReduce(t, comm.Sum).Wait(context.Background())
}
