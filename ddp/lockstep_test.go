package ddp

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
)

// whole is the sum of w·x over all ranks. It communicates in its forward pass, as a layer does
// that uses the mean of a batch over the ranks.
type whole struct {
	times
	pg *comm.ProcessGroup
}

func (m whole) Forward(x *autograd.Variable) *autograd.Variable {
	return autograd.Apply(summed{m.pg}, m.times.Forward(x))
}

// Lockstep trains a model that communicates in Forward on as many inputs as the rank with the
// fewest has. Every rank gets an error that names this rank.
func TestUnevenInputsOfAModelThatCommunicates(t *testing.T) {
	numbers := func(n int) iter.Seq[float32] { return slices.Values([]float32{1, 2, 3, 4, 5}[:n]) }
	onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
		model := must.New(New(whole{times{w}, pg}, pg, nil))
		few := pg.Size() - 1
		train := func(inputs int) (steps int, err error) {
			for x, err := range Lockstep(pg, numbers(inputs)) {
				if err != nil {
					return steps, err
				}
				y := model.Forward(autograd.Scalar(pg.Device(), x))
				if err := y.Backward(nil); err != nil {
					return steps, err
				}
				if got, want := y.Item(), float64(x)*float64(pg.Size()); got != want {
					return steps, fmt.Errorf("the sum is %v, want %v", got, want)
				}
				w.Var().ZeroGrad()
				steps++
			}
			return steps, nil
		}
		inputs := 5
		if pg.Rank() == few {
			inputs = 3
		}
		steps, err := train(inputs)
		var left *reducer.LeftError
		if steps != 3 || !errors.As(err, &left) || !slices.Equal(left.Left, []reducer.Left{{Rank: few}}) {
			return fmt.Errorf("%d steps, %v", steps, err)
		}
		if steps, err := train(4); steps != 4 || err != nil {
			return fmt.Errorf("with as many on all ranks %d steps, %v", steps, err)
		}
		// If the loop of one rank ends early, the other ranks get an error.
		for x, err := range Lockstep(pg, numbers(3)) {
			if err != nil {
				if pg.Rank() == 0 || !errors.As(err, &left) || len(left.Left) != 1 || left.Left[0].Rank != 0 || left.Left[0].Cause == "" {
					return fmt.Errorf("got %v", err)
				}
				return nil
			}
			if x == 2 && pg.Rank() == 0 {
				break
			}
		}
		if pg.Rank() != 0 {
			return errors.New("nobody said a word")
		}
		return nil
	})
}
