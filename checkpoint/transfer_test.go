package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// replica is a rank with a state of its own, which differs from that of any other rank.
type replica struct {
	net  nn.Module
	opt  *optim.AdamW
	loss float64
}

// wide is a width with which some tensors are sent together and others are not.
const wide = 10000

func newReplica(dev device.Device, rank, steps, width int, half bool) (*replica, error) {
	h := &replica{net: nn.Sequential(nn.Linear(7, width, nil), nn.BatchNorm1d(width, nil), nn.Linear(width, 3, nil)), loss: float64(rank)}
	if half {
		o := &nn.LinearOptions{DType: device.BFloat16, Compute: device.Float32}
		h.net = nn.Sequential(nn.Linear(7, width, o), nn.Linear(width, 3, o))
	}
	if err := nn.Place(h.net, dev, uint64(rank)); err != nil {
		return nil, err
	}
	h.opt = must.New(optim.NewAdamW(h.net.Parameters(), &optim.AdamWOptions{MasterWeights: half}))
	for range steps {
		x := autograd.FromSlice(dev, []float32{1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1}, 2, 7)
		if err := autograd.Sum(h.net.Forward(x)).Backward(nil); err != nil {
			return nil, err
		}
		if err := h.opt.Step(); err != nil {
			return nil, err
		}
		h.opt.ZeroGrad()
	}
	return h, nil
}

func (h *replica) state() State {
	return State{Model: h.net, Optimizers: []optim.Optimizer{h.opt}, Values: map[string]any{"loss": &h.loss}}
}

// content returns the bits of the state, and the versions of its variables.
func (h *replica) content() (bits []byte, versions []uint64) {
	s := h.state()
	for _, it := range must.New(s.items()) {
		bits = append(bits, it.v.Tensor().Buf.Host()...)
		versions = append(versions, it.v.Version())
	}
	return bits, versions
}

// Ranks 1 and 3 get the state of rank 0: rank 1 lags by a step, and rank 3 has just started. Rank 2, which has a state
// after the same step, is not written.
func TestTransfer(t *testing.T) {
	for _, half := range []bool{false, true} {
		var want []byte
		steps := []int{2, 1, 2, 0}
		commtest.OnGoroutines(t, 4, nil, func(pg *comm.ProcessGroup) error {
			h, err := newReplica(pg.Device(), pg.Rank(), steps[pg.Rank()], wide, half)
			if err != nil {
				return err
			}
			if pg.Rank() == 0 {
				h.loss = math.NaN()
				want, _ = h.content()
			}
			before, versions := h.content()
			inUse := pg.Device().Memory().InUse
			if err := Transfer(t.Context(), pg, h.state(), 0, []int{1, 3}); err != nil {
				return err
			}
			if now := pg.Device().Memory().InUse; now != inUse {
				return fmt.Errorf("%d bytes are in use, %d before", now, inUse)
			}
			after, versionsAfter := h.content()
			if n, isConsistent := h.opt.Committed(); n != 2 || !isConsistent {
				return fmt.Errorf("%d steps, consistent: %v", n, isConsistent)
			}
			if pg.Rank()%2 == 0 {
				if !slices.Equal(after, before) || !slices.Equal(versionsAfter, versions) {
					return errors.New("a rank that holds the state was written")
				}
				return nil
			}
			for i := range versions {
				if versionsAfter[i] == versions[i] {
					return fmt.Errorf("variable %d was written without a new version", i)
				}
			}
			if !slices.Equal(after, want) || !math.IsNaN(h.loss) {
				return fmt.Errorf("the loss is %v, want NaN; equal bits: %v", h.loss, slices.Equal(after, want))
			}
			return nil
		})
	}
}

// dying is a backend whose source is lost when the receivers have begun to receive the state.
type dying struct {
	backend.Backend
	receivers *sync.WaitGroup // those that have not begun to receive
	begin     *sync.Once      // of this rank
}

func (d dying) Start(c *backend.Call) (backend.Task, error) {
	if c.Name != "state" {
		return d.Backend.Start(c)
	}
	if !c.Calls[0].Src.IsZero() {
		d.receivers.Wait()
		d.Backend.Abort(errors.New("the source is lost"))
		return d.Backend.Start(c)
	}
	defer d.begin.Do(d.receivers.Done)
	return d.Backend.Start(c)
}

// If the source is lost during the transfer, a rank that lags keeps its consistent state, and a rank without one is
// not taken for consistent.
func TestTransferFromARankThatIsLost(t *testing.T) {
	var receivers sync.WaitGroup
	receivers.Add(2)
	o := commtest.WrapBackend(&comm.Options{ErrorMode: comm.CleanUpOnly}, func(b backend.Backend) backend.Backend {
		return dying{b, &receivers, new(sync.Once)}
	})
	commtest.OnGoroutines(t, 3, o, func(pg *comm.ProcessGroup) error {
		steps := []int{2, 1, 0}[pg.Rank()]
		h, err := newReplica(pg.Device(), pg.Rank(), steps, wide, false)
		if err != nil {
			return err
		}
		before, _ := h.content()
		if err := Transfer(t.Context(), pg, h.state(), 0, []int{1, 2}); err == nil {
			return errors.New("no error")
		}
		after, _ := h.content()
		n, isConsistent := h.opt.Committed()
		if n != steps || isConsistent != (steps > 0) || steps > 0 && (!slices.Equal(after, before) || h.loss != float64(pg.Rank())) {
			return fmt.Errorf("%d steps, consistent: %v; unchanged: %v", n, isConsistent, slices.Equal(after, before))
		}
		return nil
	})
}

// The averages of an EMA, and the values of frozen parameters, are copied too. The parameters stay frozen.
func TestTransferOfAverages(t *testing.T) {
	commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
		h, err := newReplica(pg.Device(), pg.Rank(), 0, 5, false)
		if err != nil {
			return err
		}
		frozen := h.net.Parameters()[0]
		frozen.Freeze()
		averages := must.New(optim.NewEMA(h.net, must.New(optim.NewSGD(h.net.Parameters(), &optim.SGDOptions{LR: 0.1})), &optim.EMAOptions{Decay: 0.5}))
		for range 2 * pg.Rank() {
			x := autograd.FromSlice(pg.Device(), []float32{1, 2, 3, 4, 5, 6, 7, 7, 6, 5, 4, 3, 2, 1}, 2, 7)
			if err := errors.Join(autograd.Sum(h.net.Forward(x)).Backward(nil), averages.Step()); err != nil {
				return err
			}
			averages.ZeroGrad()
		}
		if err := Transfer(t.Context(), pg, State{Model: h.net, Optimizers: []optim.Optimizer{averages}}, 1, []int{0}); err != nil {
			return err
		}
		var values [2][]byte // the parameters, and their averages
		read := func(i int) {
			for _, p := range h.net.Parameters() {
				values[i] = append(values[i], p.Var().Tensor().Buf.Host()...)
			}
		}
		read(0)
		if err := averages.With(func() error { read(1); return nil }); err != nil {
			return err
		}
		all, err := comm.AllGatherObject(t.Context(), pg, values)
		if err != nil {
			return err
		}
		if slices.Equal(values[0], values[1]) || !slices.Equal(all[0][0], all[1][0]) || !slices.Equal(all[0][1], all[1][1]) || !frozen.Frozen() {
			return fmt.Errorf("parameters equal: %v, averages: %v; the first parameter is frozen: %v",
				slices.Equal(all[0][0], all[1][0]), slices.Equal(all[0][1], all[1][1]), frozen.Frozen())
		}
		return nil
	})
}

type hookWithState struct{ Hook }

// Every rank gets the error of a state that cannot be copied, and no rank is written.
func TestTransferRefuses(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(pg *comm.ProcessGroup, h *replica, s *State)
	}{
		{"1 optimizers and", func(pg *comm.ProcessGroup, h *replica, s *State) {
			if pg.Rank() == 1 {
				h.net = must.New(newReplica(pg.Device(), 1, 0, 6, false)).net
				s.Model = h.net
			}
		}},
		{`rank 0 lacks the values ["seen"]`, func(pg *comm.ProcessGroup, h *replica, s *State) {
			if pg.Rank() == 1 {
				s.Values["seen"] = new(int)
			}
		}},
		{"optimizer 0 is inconsistent after step 4", func(pg *comm.ProcessGroup, h *replica, s *State) {
			if pg.Rank() == 0 {
				h.opt.BeginLoad()
			}
		}},
		{"want State.Hook to be nil", func(pg *comm.ProcessGroup, h *replica, s *State) { s.Hook = hookWithState{} }},
		{"optimizer 0 is inconsistent after step 0", func(pg *comm.ProcessGroup, h *replica, s *State) {
			_, opt, err := zero.New(nn.Linear(4, 4, nil), pg, func(params []*nn.Parameter) (*optim.AdamW, error) { return optim.NewAdamW(params, nil) }, nil)
			if err != nil {
				t.Error(err)
			}
			if pg.Rank() == 1 { // nobody can send its shard
				opt.BeginLoad()
			}
			s.Optimizers = []optim.Optimizer{opt}
		}},
	} {
		commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
			h, err := newReplica(pg.Device(), pg.Rank(), 4-pg.Rank(), 5, false)
			if err != nil {
				return err
			}
			s := h.state()
			c.change(pg, h, &s)
			before, _ := h.content()
			err = Transfer(t.Context(), pg, s, 0, []int{1})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				return fmt.Errorf("got %v, want %q", err, c.want)
			}
			if after, _ := h.content(); !slices.Equal(after, before) {
				return fmt.Errorf("%v, but the rank was written", err)
			}
			return nil
		})
	}
}

// BenchmarkTransfer copies 1000 tensors of 4 KiB.
func BenchmarkTransfer(b *testing.B) {
	commtest.OnGoroutines(b, 2, nil, func(pg *comm.ProcessGroup) error {
		var layers []nn.Module
		for range 500 {
			layers = append(layers, nn.Linear(32, 32, nil))
		}
		net := nn.Sequential(layers...)
		if err := nn.Place(net, pg.Device(), 1); err != nil {
			return err
		}
		for range b.N {
			if err := Transfer(b.Context(), pg, State{Model: net}, 0, []int{1}); err != nil {
				return err
			}
		}
		return nil
	})
}
