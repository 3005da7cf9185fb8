package extensions

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/nn"
)

// ranks runs f on two ranks, which are goroutines and rendezvous through a memStore.
func ranks(t *testing.T, f func(ctx context.Context, pg *comm.ProcessGroup) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	shared := newMemStore()
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for rank := range errs {
		wg.Go(func() {
			pg, err := comm.Init(ctx, &comm.Options{
				World: &comm.World{Rank: rank, Size: len(errs), MasterAddr: "127.0.0.1"}, Store: shared, ErrorMode: comm.CleanUpOnly,
			})
			if err == nil {
				err = errors.Join(f(ctx, pg), pg.Close())
			}
			errs[rank] = err
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// model computes y = 2wx. The factor 2 is an operation of this module.
type model struct{ w *nn.Parameter }

func (m model) Parameters() []*nn.Parameter { return []*nn.Parameter{m.w} }

func (m model) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Apply(double{}, autograd.Mul(m.w.Var(), x))
}

// The store, the operation, the hook and the optimizer are those of this module. Rank 0 has x = 1, rank 1
// has x = 3. Their gradients, 2 and 6, are averaged to 4, so a step of 0.5 changes w from 5 to 3.
func TestTrainWithOwnExtensions(t *testing.T) {
	ranks(t, func(_ context.Context, pg *comm.ProcessGroup) error {
		hook := &counter{}
		m, err := ddp.New(model{nn.NewParameter("w", autograd.Scalar(pg.Device(), 5))}, pg, &ddp.Options{Hook: hook})
		if err != nil {
			return err
		}
		opt := &descent{params: m.Parameters(), rate: 0.5}
		if err := m.Forward(autograd.Scalar(pg.Device(), float32(1+2*pg.Rank()))).Backward(nil); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		if w := m.Parameters()[0].Item(); w != 3 || hook.bytes == 0 {
			t.Errorf("rank %d: w is %v after a step, want 3; the hook saw %d bytes", pg.Rank(), w, hook.bytes)
		}
		return nil
	})
}
