//go:build cgo && linux

package ddp_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
	"github.com/goddp/goddp/profile"
)

// In a captured step of several ranks, three kernels that fill a word hold up what follows each reduction of a large
// bucket: the products beside it, and the updates beside the last one.
func TestReductionsInAGraphGetAHeadStart(t *testing.T) {
	const replays = 2
	fills := func(ranks, width int) (n int) {
		commtest.OnDevices(t, commtest.FakeGPUs(t, ranks), nil, func(pg *comm.ProcessGroup) error {
			o := nn.LinearOptions{NoBias: true}
			model, err := ddp.New(nn.Sequential(nn.Linear(width, 1024, o), nn.Linear(1024, width, o)), pg, &ddp.Options{BucketCapMB: 1})
			if err != nil {
				return err
			}
			opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1})
			if err != nil {
				return err
			}
			step := autograd.Capture(pg.Device(), func(in ...*autograd.Variable) (*autograd.Variable, error) {
				opt.ZeroGrad()
				loss := autograd.Mean(model.Forward(in[0]))
				if err := loss.Backward(); err != nil {
					return nil, err
				}
				return loss, opt.Step()
			}, &autograd.CaptureOptions{Required: true})
			x, trace := autograd.Zeros(pg.Device(), device.Float32, 1, width).Retain(), profile.Of(pg.Device())
			for i := range 4 + replays {
				if i == 4 {
					trace.Start()
				}
				if _, err := step(x); err != nil {
					return err
				}
			}
			if err := pg.Device().Compute().Sync(t.Context()); err != nil {
				return err
			}
			trace.Stop()
			var file bytes.Buffer
			if err := trace.WriteChrome(&file, pg.Rank()); err != nil {
				return err
			}
			found := strings.Count(file.String(), `"name":"fill_float32"`)
			if found%replays != 0 {
				return fmt.Errorf("%d fills in %d steps", found, replays)
			}
			if pg.Rank() == 0 {
				n = found / replays
			}
			return nil
		})
		return n
	}
	for width, want := range map[int]int{512: 0, 1024: 2 * 3} { // buckets of 2 and 4 MiB
		if got := fills(2, width) - fills(1, width); got != want {
			t.Errorf("with two layers of %d × 1024, two ranks make %d fills more in a step than one, want %d", width, got, want)
		}
	}
}
