package ddp

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// After a pass that reduced, successful or not, the next forward pass starts with rank 0's buffers.
// After other passes it does not.
func TestBroadcastBuffer(t *testing.T) {
	for _, local := range []bool{false, true} {
		t.Run(fmt.Sprint("local: ", local), func(t *testing.T) {
			onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
				m := newSummedSwitches(pg.Device(), 1)
				*m.use = []int{0}
				if err := pg.Device().Kernels().Fill(pg.Device().Compute(), m.sum.Var().Tensor(), float64(100*(1+pg.Rank()))); err != nil {
					return err
				}
				model := must.New(New(m, pg, &Options{LocalBuffers: local}))
				want := 100. // set by New, from rank 0
				check := func(when string) error {
					if got := m.sum.Var().Item(); got != want {
						return fmt.Errorf("%s the buffer is %v, want %v", when, got, want)
					}
					return nil
				}
				x := float64(1 + 2*pg.Rank())
				forward := func() *autograd.Variable {
					want += x
					return model.Forward(autograd.FromSlice(pg.Device(), []float64{x}))
				}
				err := errors.Join(check("after New"), model.NoSync(func() error { return forward().Backward(nil) }), check("after a pass that reduces nothing"))
				if err != nil {
					return err
				}
				for pass := range 3 {
					y := forward()
					if pass == 1 {
						y = failIf(pg.Rank() == 1, y)
					}
					err := errors.Join(y.Backward(nil), m.w[0].Var().GradErr())
					if (err != nil) != (pass == 1) {
						return fmt.Errorf("pass %d: %v", pass, err)
					}
					m.w[0].Var().ZeroGrad()
					if !local {
						want = 100 + 2 + float64(pass) // the value on rank 0
					}
					if err := check(fmt.Sprintf("after pass %d", pass)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}

// Buffers are sent at a fixed place among the buckets, even if a rank starts all buckets late
// because it lacks the first gradients.
func TestBuffersBesideMissingGradients(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, model, _ := trainedSummedSwitches(pg, 4, &Options{BucketCapMB: 1e-6}, nil)
		for pass := range 4 {
			use := []int{0, 1, 2, 3}
			if pass == 1 && pg.Rank() == pg.Size()-1 {
				use = use[:2]
			}
			m.step(model, float64(1+pg.Rank()), use...)
			if got, want := m.sum.Var().Item(), float64(1+pass); got != want {
				return fmt.Errorf("after pass %d the buffer is %v, want rank 0's, %v", pass, got, want)
			}
			if err := m.w[0].Var().GradErr(); errors.As(err, new(*reducer.MissingGradientError)) != (pass == 1) || (err != nil) != (pass == 1) {
				return fmt.Errorf("pass %d: %v", pass, err)
			}
			m.zeroGrad()
		}
		return nil
	})
}

// pair is a model with two parameters and two buffers.
type pair struct {
	two
	buffers []*nn.Buffer
}

func (m pair) Buffers() []*nn.Buffer { return m.buffers }

func newPair(pg *comm.ProcessGroup) pair {
	scalar := func() *autograd.Variable { return autograd.Scalar(pg.Device(), float32(1+pg.Rank())) }
	return pair{
		two{nn.NewParameter("a", scalar()), nn.NewParameter("b", scalar()), new(bool)},
		[]*nn.Buffer{nn.NewBuffer("c", scalar()), nn.NewBuffer("d", scalar())},
	}
}

// Ignored parameters and buffers may differ between ranks and are not compared.
func TestIgnoreParams(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m, mine, mean := newPair(pg), float64(1+pg.Rank()), float64(1+pg.Size())/2
		model := must.New(New(m, pg, &Options{Ignore: []string{"b", "c"}, CheckReplicas: 1}))
		if a, b, c, d := m.a.Item(), m.b.Item(), m.buffers[0].Var().Item(), m.buffers[1].Var().Item(); a != 1 || b != mine || c != mine || d != 1 {
			return fmt.Errorf("values %v, %v, %v, %v", a, b, c, d)
		}
		for range 2 {
			if err := model.Forward(autograd.Scalar(pg.Device(), float32(mine))).Backward(nil); err != nil {
				return err
			}
			if a, b := m.a.Grad().Item(), m.b.Grad().Item(); a != mean || b != mine {
				return fmt.Errorf("gradients %v and %v, want the average %v and this rank's %v", a, b, mean, mine)
			}
			if c := m.buffers[0].Var().Item(); c != mine {
				return fmt.Errorf("the buffer that is ignored is %v, want %v", c, mine)
			}
			m.a.Var().ZeroGrad()
			m.b.Var().ZeroGrad()
		}
		return nil
	})
}

// With SkipInitSync New does not change the values, but still compares the models.
func TestSkipInitSync(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		m := newPair(pg)
		if _, err := New(m, pg, &Options{SkipInitSync: true}); err != nil {
			return err
		}
		if mine := float64(1 + pg.Rank()); m.a.Item() != mine || m.buffers[1].Var().Item() != mine {
			return fmt.Errorf("values %v and %v, want %v", m.a.Item(), m.buffers[1].Var().Item(), mine)
		}
		return nil
	})
}

func TestBucketCaps(t *testing.T) {
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		const bytes = 1. / (1 << 20)
		m := newSwitches(pg.Device(), 6) // 8 bytes each
		model := must.New(New(m, pg, &Options{BucketCapsMB: []float64{8 * bytes, 16 * bytes, 24 * bytes}}))
		var sizes, caps []int
		for _, b := range model.Stats().Buckets {
			sizes, caps = append(sizes, b.Bytes), append(caps, b.Cap)
		}
		if !slices.Equal(sizes, []int{8, 16, 24}) || !slices.Equal(caps, sizes) {
			return fmt.Errorf("buckets of %v bytes with caps %v", sizes, caps)
		}
		return nil
	})
}
