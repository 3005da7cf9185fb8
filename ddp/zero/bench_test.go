package zero

import (
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
)

// BenchmarkStep measures a training step of four layers of 4 MiB with AdamW on two ranks of one
// process, with and without shards.
func BenchmarkStep(b *testing.B) {
	const size, rows, layers = 1024, 32, 4
	for _, c := range []struct {
		name string
		wrap func(nn.Module, *comm.ProcessGroup, maker, *ddp.Options) (wrapped, error)
	}{{"whole", whole}, {"shards", divided}} {
		b.Run(c.name, func(b *testing.B) {
			commtest.OnRanks(b, 2, nil, func(pg *comm.ProcessGroup) error {
				var parts []nn.Module
				for range layers {
					parts = append(parts, nn.Linear(size, size))
				}
				w, err := c.wrap(nn.Sequential(parts...), pg, adamW, &ddp.Options{BucketCapMB: 4})
				if err != nil {
					return err
				}
				x := autograd.Zeros(pg.Device(), device.Float32, rows, size)
				for i := range b.N + 2 {
					if i == 2 && pg.Rank() == 0 {
						b.ResetTimer()
					}
					if err := nn.MSELoss(w.model.Forward(x), x).Backward(); err != nil {
						return err
					}
					if err := w.opt.Step(); err != nil {
						return err
					}
					w.opt.ZeroGrad()
				}
				state, err := w.local.State()
				kept := 0
				for _, s := range state {
					kept += s.Var().Tensor().Bytes()
				}
				if pg.Rank() == 0 {
					b.ReportMetric(float64(kept)/(1<<20), "MiB-of-state")
				}
				return err
			})
		})
	}
}
