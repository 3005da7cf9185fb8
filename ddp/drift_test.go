package ddp

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit/must"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func TestCompare(t *testing.T) {
	names := []string{"a", "b", "c"}
	drift := func(ranks []int, param string, differ int, hashes ...uint64) *ReplicaDriftError {
		return &ReplicaDriftError{Ranks: ranks, Param: param, Hashes: hashes, Differ: differ, Params: 3}
	}
	for _, c := range []struct {
		name   string
		hashes []int64 // one row for each rank
		want   *ReplicaDriftError
		says   string
	}{
		{"equal", []int64{
			1, 2, 3,
			1, 2, 3,
		}, nil, ""},
		{"one rank alone", []int64{1, 2, 3}, nil, ""},
		{"two ranks", []int64{
			1, 2, 3,
			1, 9, 8,
		}, drift(nil, "b", 2, 2, 9), "in 2 of 3 parameters: there is no majority that shows which rank is wrong"},
		{"one of three", []int64{
			1, 2, 3,
			1, 2, 3,
			1, 2, -1,
		}, drift([]int{2}, "c", 1, 3, 3, 1<<64-1), `rank 2 differs from the majority: "c" has the hash 0x0000000000000003 on ranks 0, 1; 0xffffffffffffffff on rank 2`},
		{"rank 0 of three", []int64{
			5, 6, 7,
			1, 2, 3,
			1, 2, 3,
		}, drift([]int{0}, "a", 3, 5, 1, 1), "rank 0 differs"},
		{"two of three, each elsewhere", []int64{
			1, 2, 3,
			1, 9, 3,
			1, 2, 9,
		}, drift([]int{1, 2}, "b", 2, 2, 9, 2), "ranks 1, 2 differ"},
		{"all three", []int64{
			1, 2, 3,
			4, 2, 3,
			5, 2, 3,
		}, drift(nil, "a", 1, 1, 4, 5), "no majority"},
		{"two against two", []int64{
			1, 2, 3,
			1, 2, 3,
			4, 2, 3,
			4, 2, 3,
		}, drift(nil, "a", 1, 1, 1, 4, 4), "on ranks 0, 1; 0x0000000000000004 on ranks 2, 3"},
		{"no majority in one, but in another", []int64{
			1, 2, 3,
			4, 2, 3,
			5, 7, 3,
		}, drift([]int{2}, "a", 2, 1, 4, 5), "rank 2 differs"},
	} {
		got := compare(c.hashes, names, nil)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", c.name, got, c.want)
		} else if got != nil && !strings.Contains(got.Error(), c.says) {
			t.Errorf("%s: it says %q, want %q", c.name, got, c.says)
		}
	}
}

// If very many hashes differ, the message lists the first few and the number of the others.
func TestDriftOfManyRanks(t *testing.T) {
	for want, hash := range map[string]func(rank int64) int64{
		"rank 0 differs from the majority: \"w\" has the hash 0x0000000000000000 on rank 0; 0x0000000000000001 on ranks 1-63": func(rank int64) int64 { return min(rank, 1) },
		"on rank 7; 56 more": func(rank int64) int64 { return rank },
	} {
		var hashes []int64
		for rank := range int64(64) {
			hashes = append(hashes, hash(rank))
		}
		if got := compare(hashes, []string{"w"}, nil).Error(); !strings.HasSuffix(got, want) {
			t.Errorf("%q does not end with %q", got, want)
		}
	}
}

// flip inverts a bit in byte i of v.
func flip(v *autograd.Variable, i int) {
	b := bytesOf(v)
	b[i] ^= 1
	if err := v.Device().CopyIn(v.Device().Compute(), v.Tensor().Buf, b); err != nil {
		panic(err)
	}
}

// If a bit of one rank's parameter changes, every rank's next checked pass returns an error that
// names the rank and the parameter. The step is not applied, and training goes on once the
// parameter is repaired.
func TestReplicaDrift(t *testing.T) {
	const every, odd = 2, 1
	for _, ranks := range []int{2, 3} {
		t.Run(fmt.Sprint(ranks, " ranks"), func(t *testing.T) {
			onBoth(t, ranks, func(pg *comm.ProcessGroup, isLagging bool) error {
				net := mlp(4, device.Float64)
				model := must.New(New(net, pg, &Options{CheckReplicas: every, BucketCapMB: 1e-5}))
				opt := must.New(optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.1}))
				x := samples(pg.Device(), 1, 2*ranks, 4, pg.Rank(), ranks)
				backward := func() error {
					y := autograd.Zeros(pg.Device(), device.Float64, 2, 4)
					return nn.MSELoss(model.Forward(x), y, nil).Backward(nil)
				}
				for pass := 1; pass <= 6; pass++ {
					switch {
					case pass == 3 && pg.Rank() == odd: // a pass without a check
						for _, i := range []int{2, 4} {
							flip(model.Parameters()[i].Var(), 5)
						}
					case pass == 5:
						if err := broadcast(pg, "repair", variables(model.Parameters()), 0).Wait(t.Context()); err != nil {
							return err
						}
					}
					if err := model.NoSync(backward); err != nil { // passes within NoSync do not count
						return err
					}
					before := string(parameterBytes(model.Parameters()))
					err := backward()
					serr := opt.Step()
					after := string(parameterBytes(model.Parameters()))
					opt.ZeroGrad()
					if pass != 4 {
						if err := errors.Join(err, serr); err != nil || before == after {
							return fmt.Errorf("pass %d: %w, changed: %v", pass, err, before != after)
						}
						continue
					}
					for _, err := range []error{err, serr} {
						var d *ReplicaDriftError
						if !errors.As(err, &d) {
							return fmt.Errorf("pass %d: got %v, want a ReplicaDriftError", pass, err)
						}
						named := len(d.Ranks) == 1 && d.Ranks[0] == odd
						if ranks == 2 {
							named = len(d.Ranks) == 0
						}
						if !named || d.Pass != 4 || d.Param != "2.weight" || d.Differ != 2 || d.Params != 6 || len(d.Hashes) != ranks || d.Hashes[0] == d.Hashes[odd] {
							return fmt.Errorf("pass %d: %+v", pass, d)
						}
					}
					if before != after {
						return fmt.Errorf("pass %d was applied", pass)
					}
				}
				return nil
			})
		})
	}
}

// A checked pass may also fail for other reasons: the error contains all of them.
func TestReplicaDriftBesideAMissingGradient(t *testing.T) {
	onBoth(t, 3, func(pg *comm.ProcessGroup, isLagging bool) error {
		skip := pg.Rank() == 0
		m := two{nn.NewParameter("first", autograd.Scalar(pg.Device(), 1)), nn.NewParameter("second", autograd.Scalar(pg.Device(), 2)), &skip}
		model := must.New(New(m, pg, &Options{CheckReplicas: 1}))
		if pg.Rank() == 2 {
			flip(m.a.Var(), 0)
		}
		err := model.Forward(autograd.Scalar(pg.Device(), 1)).Backward(nil)
		for _, want := range []string{`"second" on rank 0`, "rank 2 differs from the majority"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("got %v, want %s", err, want)
			}
		}
		return nil
	})
}

// A check hashes the current memory of the parameters, not the memory that they had in New.
func TestReplicaDriftOfMovedParameters(t *testing.T) {
	onBoth(t, 2, func(pg *comm.ProcessGroup, isLagging bool) error {
		w := nn.NewParameter("w", autograd.Scalar(pg.Device(), 1))
		model := must.New(New(times{w}, pg, &Options{CheckReplicas: 1}))
		home := autograd.Scalar(pg.Device(), 0)
		defer runtime.KeepAlive(home)
		if err := w.Var().MoveTo(home.Tensor()); err != nil {
			return err
		}
		if err := model.Forward(autograd.Scalar(pg.Device(), 1)).Backward(nil); err != nil {
			return fmt.Errorf("equal replicas: %w", err)
		}
		if pg.Rank() == 1 {
			flip(w.Var(), 0)
		}
		err := model.Forward(autograd.Scalar(pg.Device(), 1)).Backward(nil)
		if d := (*ReplicaDriftError)(nil); !errors.As(err, &d) {
			return fmt.Errorf("replicas that differ: got %v, want a ReplicaDriftError", err)
		}
		return nil
	})
}
