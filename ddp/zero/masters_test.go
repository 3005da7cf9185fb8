package zero

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// still changes no parameter, so that a master ends with the values that it began with.
func still(params []*nn.Parameter) (Local, error) {
	return optim.NewSGD(params, &optim.SGDOptions{LR: 0, MasterWeights: true})
}

// The masters of a model that Cast has rounded begin on all ranks with rank 0's values from before, with
// shards and without. A parameter that the program writes before the first step gives its master the new value. If a
// rank has no such values, as after a restart, the masters of all ranks begin with rounded ones.
func TestMastersBeginWithUnroundedValues(t *testing.T) {
	const written = "2.bias"
	for _, c := range []struct {
		name    string
		wrap    wrapper
		rounded bool // rank 1 has no values from before the rounding
	}{{"ddp", whole, false}, {"zero", divided, false}, {"ddp, one rank", whole, true}, {"zero, one rank", divided, true}} {
		t.Run(c.name, func(t *testing.T) {
			commtest.OnRanks(t, 2, quiet(), func(pg *comm.ProcessGroup) error {
				dev := pg.Device()
				float := mlp(nn.LinearOptions{})
				if err := nn.Place(float, dev, 0); err != nil { // as rank 0's
					return err
				}
				net := mlp(nn.LinearOptions{Compute: device.Float32})
				if err := nn.Place(net, dev, uint64(pg.Rank())); err != nil {
					return err
				}
				masters := !c.rounded || pg.Rank() != 1
				if err := nn.Cast(net, device.BFloat16, &nn.CastOptions{Masters: masters}); err != nil {
					return err
				}
				w := must.New(c.wrap(net, pg, still, small))
				want := map[string]*autograd.Variable{}
				for i, p := range net.Parameters() {
					values := float.Parameters()[i].Var().Detach()
					if c.rounded {
						values = autograd.Cast(autograd.Cast(values, device.BFloat16), device.Float32).Retain()
					}
					if p.Name() == written {
						p.Var().BumpVersion()
						if err := dev.Kernels().Fill(dev.Compute(), p.Var().Tensor(), 0.5); err != nil {
							return err
						}
						values = autograd.FromSlice(dev, slices.Repeat([]float32{0.5}, width), width)
					}
					want[p.Name()+".master"] = values
				}
				if _, err := w.train(pg, device.Float32, 0, 1); err != nil {
					return err
				}
				got := must.New(w.state(pg))
				maps.DeleteFunc(got, func(name string, _ *autograd.Variable) bool { return want[name] == nil })
				if len(got) != len(want) {
					return fmt.Errorf("there are %d masters, want %d", len(got), len(want))
				}
				for name, v := range want {
					if !equal(got[name], v) {
						return fmt.Errorf("rank %d: %s does not begin with the values from before the rounding", pg.Rank(), name)
					}
				}
				for _, p := range net.Parameters() {
					if p.Master() != nil {
						return fmt.Errorf("%v still has the values from before the rounding", p)
					}
				}
				return nil
			})
		})
	}
}
