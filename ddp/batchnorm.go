package ddp

import (
	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// SyncBatchNorm makes every BatchNorm layer of m, in training, normalize by the samples of all ranks of
// pg. The result is that of one process with the whole batch, even if ranks have different numbers of
// samples. SyncBatchNorm returns the number of these layers. It corresponds to PyTorch's convert_sync_batchnorm,
// but changes the layers in place. A nil pg restores normalization by each rank's own samples.
//
// Each of these layers communicates in its forward and in its backward pass. All ranks must therefore
// make the same passes: use [Lockstep] to end the ranks' loops together, not [Model.Join]. pg may be the
// group that was passed to [New].
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

// batchPeers implements autograd.BatchPeers over the ranks of a group.
type batchPeers struct{ pg *comm.ProcessGroup }

func (p *batchPeers) Size() int { return p.pg.Size() }

func (p *batchPeers) Gather(dst, src device.Tensor) error {
	return p.pg.With(&comm.CallOptions{Name: "moments of a batch"}).AllGather(dst, src).Wait(p.pg.Context())
}

func (p *batchPeers) Sum(t device.Tensor) error {
	return p.pg.With(&comm.CallOptions{Name: "gradients of a batch's moments"}).AllReduce(t, comm.Sum).Wait(p.pg.Context())
}
