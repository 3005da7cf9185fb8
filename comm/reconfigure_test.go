package comm_test

import (
	"errors"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit/must"
)

// sum returns the sum of the ranks' numbers in the job's first membership.
func sum(pg *comm.ProcessGroup, mine float32) (float32, error) {
	b, err := pg.Alloc(4)
	if err != nil {
		return 0, err
	}
	t := device.NewTensor(b, device.Float32, 1)
	device.Elements[float32](t)[0] = mine
	err = pg.AllReduce(t, comm.Sum).Sync(pg.Context())
	return device.Elements[float32](t)[0], err
}

// Ranks are lost, also two at once. The others go on with the same handles. Ranks with an odd number lag by a step.
func TestReconfigure(t *testing.T) {
	o := &comm.Options{}
	backend.Survive(o)
	groups, err := comm.Local(5, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, pg := range groups {
			pg.Close()
		}
	}()
	alive := []int{0, 1, 2, 3, 4}
	reconfigure := func(epoch int) {
		t.Helper()
		wanted := comm.Membership{Epoch: epoch, Steps: 7, Source: slices.IndexFunc(alive, func(r int) bool { return r%2 == 0 })}
		for i, r := range alive {
			if r%2 == 1 {
				wanted.Lacking = append(wanted.Lacking, i)
			}
		}
		var wg sync.WaitGroup
		for want, r := range alive {
			wg.Go(func() {
				m, err := groups[r].Reconfigure(t.Context(), comm.Progress{Steps: 7 - r%2, Consistent: true})
				if err != nil || !reflect.DeepEqual(m, wanted) || groups[r].Rank() != want || groups[r].Size() != len(alive) {
					t.Errorf("the process that was rank %d is rank %d of %d in %+v, %v, want rank %d of %d in %+v", r, groups[r].Rank(), groups[r].Size(), m, err, want, len(alive), wanted)
				}
			})
		}
		wg.Wait()
		for _, r := range alive {
			wg.Go(func() {
				want := 0
				for _, r := range alive {
					want += r
				}
				view := groups[r].With(&comm.CallOptions{Name: "view"})
				if got, err := sum(view, float32(r)); err != nil || got != float32(want) {
					t.Errorf("rank %d: the sum is %v, %v, want %d", r, got, err, want)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	reconfigure(1)
	for epoch, dead := range [][]int{{1}, {0, 4}} {
		var wg sync.WaitGroup
		for _, r := range alive {
			wg.Go(func() {
				if slices.Contains(dead, r) {
					backend.Kill(groups[r])
					return
				}
				var lost *failure.PeerLostError
				if _, err := sum(groups[r], 1); !errors.As(err, &lost) {
					t.Errorf("rank %d: %v, want that a peer is lost", r, err)
				}
			})
		}
		wg.Wait()
		alive = slices.DeleteFunc(alive, func(r int) bool { return slices.Contains(dead, r) })
		reconfigure(epoch + 2)
	}
}

// A process that replaces a lost one can split its group before it joins the others.
func TestReplacementSplits(t *testing.T) {
	o := &comm.Options{}
	backend.Survive(o)
	groups := must.New(comm.Local(2, o))
	late := must.New(backend.Replacement(groups[0], 2)).(*comm.ProcessGroup)
	defer func() {
		for _, pg := range append(groups, late) {
			pg.Close()
		}
	}()
	sub, err := late.Split(t.Context(), 0, late.Rank())
	if err != nil {
		t.Fatal(err)
	}
	if all, err := comm.AllGatherInts(t.Context(), sub, []int64{7}); err != nil || sub.Size() != 2 || len(all) != 2 || all[1][0] != 7 {
		t.Errorf("a gather among %d ranks has %v, %v; want 7 of both", sub.Size(), all, err)
	}
}
