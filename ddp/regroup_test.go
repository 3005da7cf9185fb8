package ddp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// dropoutMLP returns a model whose passes draw random numbers.
func dropoutMLP() nn.Module {
	return nn.Sequential(mlp(8, device.Float64), nn.Dropout(0.3), mlp(8, device.Float64))
}

// trainPasses makes some steps, which use the same 12 samples on any number of ranks.
func trainPasses(model *Model, opt optim.Optimizer, from, to int) error {
	pg := model.pg
	for step := from; step < to; step++ {
		x, y := samples(pg.Device(), uint64(2*step), 12, 8, pg.Rank(), pg.Size()), samples(pg.Device(), uint64(2*step+1), 12, 8, pg.Rank(), pg.Size())
		if err := nn.MSELoss(model.Forward(x), y, nil).Backward(nil); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	return nil
}

// After a rank is lost, the others go on with the same model, and come to the bits to which two ranks come that start
// from the same state.
func TestRegroup(t *testing.T) {
	o := &comm.Options{}
	backend.Survive(o)
	groups, err := comm.Local(3, o)
	if err != nil {
		t.Fatal(err)
	}
	opts := &Options{BucketCapMB: 0.0001, CheckReplicas: 2, Stats: true}
	sgd := func(m *Model) *optim.SGD { return must.New(optim.NewSGD(m.Parameters(), &optim.SGDOptions{LR: 0.05})) }
	var params, random, got [3][]byte // after three steps, and at the end
	var wg, trained sync.WaitGroup    // trained: all ranks have made three steps
	trained.Add(len(groups))
	for r, pg := range groups {
		wg.Go(func() {
			err := func() error {
				model, err := New(dropoutMLP(), pg, opts)
				if err != nil {
					return err
				}
				opt := sgd(model)
				if _, err := pg.Reconfigure(t.Context(), comm.Progress{Consistent: true}); err != nil {
					return err
				}
				if err := trainPasses(model, opt, 0, 3); err != nil {
					return err
				}
				params[r], random[r] = parameterBytes(model.Parameters()), must.New(json.Marshal(autograd.Generator(pg.Device())))
				trained.Done()
				if r == 1 {
					trained.Wait()
					backend.Kill(pg)
					return nil
				}
				var lost *failure.PeerLostError
				if err := trainPasses(model, opt, 3, 4); !errors.As(err, &lost) {
					return fmt.Errorf("got %v, want a lost peer", err)
				}
				if r == 2 {
					model.passes++ // the ranks may have begun different numbers of passes, and check replicas by number
				}
				if _, err := pg.Reconfigure(t.Context(), comm.Progress{Steps: 3, Consistent: true}); err != nil {
					return err
				}
				if err := model.Regroup(t.Context()); err != nil {
					return err
				}
				if err := json.Unmarshal(random[r], autograd.Generator(pg.Device())); err != nil {
					return err
				}
				if g := model.Parameters()[0].Grad(); g != nil {
					return fmt.Errorf("the gradient %v is left", g)
				}
				err = trainPasses(model, opt, 3, 7)
				got[r] = parameterBytes(model.Parameters())
				return err
			}()
			if err != nil {
				t.Errorf("rank %d: %v", r, err)
				pg.Abort(err)
			}
		})
	}
	wg.Wait()
	for _, pg := range groups {
		pg.Close()
	}
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		model := must.New(New(dropoutMLP(), pg, opts))
		rest := params[0]
		for _, p := range model.Parameters() {
			rest = rest[copy(p.Var().Tensor().Buf.Host(), rest):]
		}
		if err := json.Unmarshal(random[0], autograd.Generator(pg.Device())); err != nil {
			return err
		}
		if err := trainPasses(model, sgd(model), 3, 7); err != nil {
			return err
		}
		if want, r := parameterBytes(model.Parameters()), 2*pg.Rank(); !bytes.Equal(got[r], want) {
			return fmt.Errorf("the rank that was rank %d has other parameters than without a change of the ranks", r)
		}
		return nil
	})
}
