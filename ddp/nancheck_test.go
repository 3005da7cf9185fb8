package ddp

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

// poisoned computes a·x + b·v + c·x, so that v is the gradient of b.
type poisoned struct {
	a, b, c *nn.Parameter
	v       *float32
}

func (m poisoned) Forward(x *autograd.Variable) *autograd.Variable {
	v := autograd.Scalar(x.Device(), *m.v)
	return autograd.Add(autograd.Add(autograd.Mul(m.a.Var(), x), autograd.Mul(m.b.Var(), v)), autograd.Mul(m.c.Var(), x))
}

func (m poisoned) Parameters() []*nn.Parameter { return []*nn.Parameter{m.a, m.b, m.c} }

// If one rank has a NaN in the middle bucket, from this pass or an accumulating one, every rank
// gets an error that names the rank. The step is not applied, and the next pass works.
func TestNonFiniteGradient(t *testing.T) {
	const bad = 1
	for _, by := range []string{"option", "GODDP_NAN_CHECK", "TORCH_NCCL_NAN_CHECK"} {
		t.Run(by, func(t *testing.T) {
			opts := &Options{BucketCapMB: 1e-6, CheckNonFinite: by == "option"}
			if by != "option" {
				t.Setenv(by, "1")
			}
			onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
				dev := pg.Device()
				parameter := func(name string) *nn.Parameter { return nn.NewParameter(name, autograd.Scalar(dev, 10)) }
				v := float32(1)
				m := poisoned{parameter("a"), parameter("b"), parameter("c"), &v}
				model := must.New(New(m, pg, opts))
				opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 1}))
				backward := func(poison bool) error {
					v = 1
					if poison && pg.Rank() == bad {
						v = float32(math.NaN())
					}
					return model.Forward(autograd.Scalar(dev, 1)).Backward(nil)
				}
				want := float32(10)
				for step := range 6 {
					inner, outer := step == 2, step == 1 || step == 4
					if err := model.NoSync(func() error { return backward(inner) }); err != nil {
						return fmt.Errorf("step %d: without synchronisation: %w", step, err)
					}
					err := backward(outer)
					serr := opt.Step()
					opt.ZeroGrad()
					if !inner && !outer {
						want -= 2 // two passes with gradient 1
						if err := errors.Join(err, serr); err != nil {
							return fmt.Errorf("step %d: %w", step, err)
						}
					} else {
						errs, early := expectedErrors(pg, isLagging, bad, err, serr)
						if early != nil {
							return fmt.Errorf("step %d: %w", step, early)
						}
						for _, err := range errs {
							var found *reducer.NonFiniteError
							if !errors.As(err, &found) || len(found.Found) != 1 || found.Found[0] != (reducer.NonFinite{Rank: bad, Bucket: 1, Param: "b", Params: 1}) {
								return fmt.Errorf("step %d: got %v, want \"b\" of rank %d", step, err, bad)
							}
						}
					}
					for _, p := range model.Parameters() {
						if got := p.Var().Item(); got != float64(want) {
							return fmt.Errorf("step %d: %s is %v, want %v", step, p.Name(), got, want)
						}
					}
				}
				return nil
			})
		})
	}
}

// An invalid setting on one rank makes New fail on all ranks.
func TestNanCheckSettings(t *testing.T) {
	t.Setenv("GODDP_NAN_CHECK", "perhaps")
	onEach(t, func(pg *comm.ProcessGroup) error {
		_, err := New(times{nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))}, pg, nil)
		if err == nil || !strings.Contains(err.Error(), `GODDP_NAN_CHECK="perhaps": want 0 or 1`) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}
