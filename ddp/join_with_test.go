package ddp

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/optim"
)

// companion is a Joinable that notes its calls. Shadow returns err.
type companion struct {
	shadows int
	last    []int // the arguments of Joined
	err     error
}

func (c *companion) Shadow() error         { c.shadows++; return c.err }
func (c *companion) Joined(last int) error { c.last = append(c.last, last); return nil }

// A Joinable makes the steps that its rank has no inputs for, and learns which rank had the last inputs. If it fails on a
// rank, the training of all ranks ends.
func TestJoinables(t *testing.T) {
	for _, fails := range []bool{false, true} {
		onAll(t, func(pg *comm.ProcessGroup, isLagging bool) error {
			m, model, opt := trainedSwitches(pg, 2, nil, &optim.SGDOptions{LR: 1})
			with, last := &companion{}, pg.Size()-1
			if fails {
				with.err = errInjected
			}
			err := model.Join(func() error {
				return m.train(model, opt, 2*pg.Rank(), 1, 0, 1)
			}, &JoinOptions{With: []Joinable{with}})
			var left *reducer.LeftError
			switch {
			case fails && pg.Rank() == 0:
				if !errors.Is(err, errInjected) {
					return fmt.Errorf("got %v", err)
				}
			case fails:
				if !errors.As(err, &left) || !slices.Equal(left.Left, []reducer.Left{{Rank: 0, Cause: errInjected.Error()}}) || with.last != nil {
					return fmt.Errorf("got %v; told that %v had the last inputs", err, with.last)
				}
			case err != nil || with.shadows != 2*(last-pg.Rank()) || !slices.Equal(with.last, []int{last}):
				return fmt.Errorf("%d steps of others, told that %v had the last inputs: %v", with.shadows, with.last, err)
			}
			return nil
		})
	}
}
