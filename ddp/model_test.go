package ddp

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// twoInputs is a model with two inputs and two results, w0·x and w1·(x + y). It does not use its
// parameter w2.
type twoInputs struct {
	nn.Container
	switches
}

func (m *twoInputs) Parameters() []*nn.Parameter { return m.Container.Parameters() }

func (m *twoInputs) Forward(x, y *autograd.Variable) (a, b *autograd.Variable) {
	return m.term(0, x), m.term(1, autograd.Add(x, y))
}

// A model with several inputs and results is wrapped like any other, and called within Run.
func TestRunOfSeveralInputsAndResults(t *testing.T) {
	onBuckets(t, Options{FindUnusedParameters: true}, func(pg *comm.ProcessGroup, _ bool, opts *Options) error {
		m := &twoInputs{switches: newSwitches(pg.Device(), 3)}
		for _, p := range m.w {
			m.AddParameter(p)
		}
		model := must.New(New(m, pg, opts))
		mine, mean := share(pg)
		x, y := autograd.FromSlice(pg.Device(), []float64{mine}), autograd.FromSlice(pg.Device(), []float64{2})
		for range 2 {
			var b *autograd.Variable
			a := model.Run(func() (a *autograd.Variable) {
				a, b = m.Forward(x, y)
				return a
			})
			if err := errors.Join(a.Backward(nil), m.has(mean, none, none)); err != nil {
				return err
			}
			if err := errors.Join(model.Output(b).Backward(nil), m.has(mean, 2*(mean+2), none)); err != nil {
				return err
			}
			for _, p := range m.Parameters() {
				p.Var().ZeroGrad()
			}
		}
		model.SetTraining(false)
		if m.Training() {
			return errors.New("the model does not pass the mode on")
		}
		defer func() {
			if e := fmt.Sprint(recover()); !strings.Contains(e, "*ddp.twoInputs") || !strings.Contains(e, "Run") {
				t.Errorf("Forward of two inputs panics with %s", e)
			}
		}()
		model.Forward(x)
		return nil
	})
}
