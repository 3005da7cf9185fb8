package zero

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/nn"
)

// A step that gathers the parameters increases the version of each, as a step without shards does.
// So does a recovery. The version of a parameter that the optimizer leaves out does not change.
func TestGathersIncreaseVersion(t *testing.T) {
	onBoth(t, func(pg *comm.ProcessGroup) error {
		for _, wrap := range []func(nn.Module, *comm.ProcessGroup, maker, *ddp.Options) (wrapped, error){whole, divided} {
			net := mlp(double)
			w, err := wrap(net, pg, func(ps []*nn.Parameter) (Local, error) {
				return adamW(slices.DeleteFunc(slices.Clone(ps), func(p *nn.Parameter) bool { return strings.HasPrefix(p.Name(), "2.bias") }))
			}, small)
			if err != nil {
				return err
			}
			before := versions(net)
			if _, err := w.train(pg, device.Float64, 0, 3); err != nil {
				return err
			}
			for i, p := range net.Parameters() {
				want := before[i] + 3
				if p.Name() == "2.bias" {
					want = before[i]
				}
				if got := p.Var().Version(); got != want {
					return fmt.Errorf("%s is at version %d after 3 steps, want %d", p.Name(), got, want)
				}
			}
		}
		net := mlp(double)
		w, err := divided(net, pg, adamW, small)
		if err != nil {
			return err
		}
		if _, err := w.train(pg, device.Float64, 0, 1); err != nil {
			return err
		}
		before := versions(net)
		if _, _, err = Recover(net, pg, w.zero, adamW, small); err != nil {
			return err
		}
		for i, p := range net.Parameters() {
			if got := p.Var().Version(); got <= before[i] {
				return fmt.Errorf("%s is at version %d after a recovery, and was at %d", p.Name(), got, before[i])
			}
		}
		return nil
	}, 2)
}

func versions(m nn.Module) (all []uint64) {
	for _, p := range m.Parameters() {
		all = append(all, p.Var().Version())
	}
	return all
}
