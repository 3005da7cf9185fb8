package elastic_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/elastic"
	"github.com/goddp/goddp/internal/backend"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/test/survive/job"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// Ranks are lost at different points of a step. The others make the same steps from then on, with the same states.
func TestRun(t *testing.T) {
	const ranks, steps = 4, 40
	deaths := map[int]map[job.Phase]int{10: {job.Forward: 3}, 11: {job.Backward: 0}, 20: {job.Optimizer: 1}}
	o := &comm.Options{}
	backend.Survive(o)
	groups, err := comm.Local(ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	hashes := make([]string, ranks)
	var wg sync.WaitGroup
	for r, pg := range groups {
		wg.Go(func() {
			defer pg.Close()
			j, err := job.New(pg, job.Options{})
			if err != nil {
				t.Error(err)
				return
			}
			ctx, die := context.WithCancel(t.Context())
			defer die()
			j.Phase = func(p job.Phase) {
				step, _ := j.Opt.Committed()
				if victim, dies := deaths[step][p]; dies && victim == r {
					backend.Kill(pg)
					die()
				}
			}
			err = elastic.Run(ctx, pg, &elastic.Config{State: j.State(), Data: j.Loader}, func(ctx context.Context) error {
				return j.Loop(ctx, folder, steps)
			})
			if ctx.Err() != nil {
				return // it is dead
			}
			if hashes[r], _ = j.Hash(); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
	}
	wg.Wait()
	hashes = slices.DeleteFunc(hashes, func(h string) bool { return h == "" })
	slices.Sort(hashes)
	if len(hashes) == 0 || len(slices.Compact(hashes)) != 1 {
		t.Errorf("the states are %v", hashes)
	}
}
