package ddp

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/devicetest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// held is a backend in which calls with a given name, and those after them, start only when release
// is closed.
type held struct {
	backend.Backend
	name    string
	release chan struct{}
}

func (h held) Start(c *backend.Call) (backend.Task, error) {
	if c.Name != h.name {
		return h.Backend.Start(c)
	}
	late := *c
	late.After = heldEvent{c.After, h.release}
	return h.Backend.Start(&late)
}

type heldEvent struct {
	device.Event
	release chan struct{}
}

func (e heldEvent) Done() (bool, error) {
	select {
	case <-e.release:
		return e.Event.Done()
	default:
		return false, nil
	}
}

func (e heldEvent) Sync(ctx context.Context) error {
	select {
	case <-e.release:
		return e.Event.Sync(ctx)
	case <-time.After(time.Minute):
		return errors.New("somebody waits for it too early")
	}
}

// marked is a module with a buffer that each Forward sets to the first element of its input.
type marked struct {
	nn.Module
	mark *nn.Buffer
}

func (m marked) Forward(x *autograd.Variable) *autograd.Variable {
	dev := x.Device()
	if err := dev.Kernels().Copy(dev.Compute(), m.mark.Var().Tensor(), x.Tensor().Flat().Range(0, 1)); err != nil {
		panic(err)
	}
	return m.Module.Forward(x)
}

func (m marked) Buffers() []*nn.Buffer { return []*nn.Buffer{m.mark} }

// On a GPU only the last bucket's updates wait for its reduction, if the bucket is large. The
// updates of the other buckets run during the reduction, and the next forward pass has rank 0's
// buffers.
func TestOnlyLastUpdatesWaitForLastReduction(t *testing.T) {
	const wide = 1100 // 4.8 MB of gradients for each layer
	devices := []device.Device{devicetest.Lagging(cpu.New(nil)), devicetest.Lagging(cpu.New(nil))}
	release := make(chan struct{})
	opts := commtest.WrapBackend(nil, func(b backend.Backend) backend.Backend { return held{b, "bucket 1", release} })
	releaseOnce := sync.OnceFunc(func() { close(release) }) // not reached by a rank that waits for the held call
	commtest.OnDevices(t, devices, opts, func(pg *comm.ProcessGroup) error {
		mark := nn.NewBuffer("mark", autograd.FromSlice(pg.Device(), []float32{0}))
		net := marked{nn.Sequential(nn.Linear(wide, wide, nil), nn.Linear(wide, wide, nil)), mark}
		model := must.New(New(net, pg, &Options{BucketCapMB: 1}))
		ps := model.Parameters()
		err := func() error {
			defer releaseOnce()
			x := autograd.FromSlice(pg.Device(), slices.Repeat([]float32{float32(1 + 2*pg.Rank())}, wide), 1, wide)
			if err := autograd.Sum(model.Forward(x)).Backward(nil); err != nil {
				return err
			}
			// Each output of the second layer is one term of the sum, on every rank.
			if g, err := ps[3].Var().Grad().Read(t.Context()); err != nil || g[0] != 1 || g[wide-1] != 1 {
				return fmt.Errorf("the gradient of the second layer's bias is %v ... %v, %v, want the average, 1", g[0], g[wide-1], err)
			}
			if got, err := mark.Var().Read(t.Context()); err != nil || got[0] != 1 {
				return fmt.Errorf("the buffer is %v, %v, want rank 0's, 1", got, err)
			}
			return nil
		}()
		if err != nil {
			return err
		}
		// The input is 1 or 3: 2 on average.
		w, err := ps[0].Var().Grad().Read(t.Context())
		if err != nil {
			return err
		}
		b, err := ps[1].Var().Grad().Read(t.Context())
		if err != nil {
			return err
		}
		if math.Abs(w[0]-2*b[0]) > 1e-5*math.Abs(b[0]) {
			return fmt.Errorf("the gradient of the first layer is %v for its weight and %v for its bias, want twice that", w[0], b[0])
		}
		return ps[0].Var().GradErr()
	})
}
