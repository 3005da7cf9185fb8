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
	"github.com/goddp/goddp/comm/backend"
	"github.com/goddp/goddp/comm/commtest"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/device/devicetest"
	"github.com/goddp/goddp/nn"
)

// held is a backend that has nobody wait for calls of one name before release
// is closed.
type held struct {
	backend.Backend
	name    string
	release chan struct{}
}

func (h held) Start(c *backend.Call) (backend.Task, error) {
	t, err := h.Backend.Start(c)
	if err != nil || c.Name != h.name {
		return t, err
	}
	return heldTask{t, h.release}, nil
}

type heldTask struct {
	backend.Task
	release chan struct{}
}

func (t heldTask) Join(ctx context.Context, s device.Stream) error {
	select {
	case <-t.release:
		return t.Task.Join(ctx, s)
	case <-time.After(10 * time.Second):
		return errors.New("somebody waits for it too early")
	}
}

// On a GPU nothing waits for the last reduction, if that is a large one, but
// what uses its gradients: the updates of the other buckets hide behind it.
func TestOnlyItsUpdatesWaitForTheLastReduction(t *testing.T) {
	const wide = 1100 // 4.8 MB of gradients for each layer
	devices := []device.Device{devicetest.Lagging(cpu.New(nil)), devicetest.Lagging(cpu.New(nil))}
	release := make(chan struct{})
	opts := &comm.Options{WrapBackend: func(b backend.Backend) backend.Backend { return held{b, "bucket 1", release} }}
	over := sync.OnceFunc(func() { close(release) }) // no rank gets here that waits for it
	commtest.OnDevices(t, devices, opts, func(pg *comm.ProcessGroup) error {
		model, err := New(nn.Sequential(nn.Linear(wide, wide), nn.Linear(wide, wide)), pg, &Options{BucketCapMB: 1})
		if err != nil {
			return err
		}
		ps := model.Parameters()
		err = func() error {
			defer over()
			x := autograd.FromSlice(pg.Device(), slices.Repeat([]float32{float32(1 + 2*pg.Rank())}, wide), 1, wide)
			if err := autograd.Sum(model.Forward(x)).Backward(); err != nil {
				return err
			}
			// Each output of the second layer is one of the sum's terms, on every rank.
			if g, err := ps[3].Var().Grad().Read(t.Context()); err != nil || g[0] != 1 || g[wide-1] != 1 {
				return fmt.Errorf("the gradient of the second layer's bias is %v ... %v, %v, want the average, 1", g[0], g[wide-1], err)
			}
			return nil
		}()
		if err != nil {
			return err
		}
		// The input is 1 or 3: on average it is 2.
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
