package main

import (
	"fmt"
	"math"
	"regexp"
	"testing"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/ddp/zero"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// TestOnProcesses runs the tests of this package on real processes.
func TestOnProcesses(t *testing.T) { commtest.Processes(t, 2, "GODDP_DEVICE=cpu") }

// TestEveryWayMeetsItsLimits trains in every way, in fewer steps than the command.
func TestEveryWayMeetsItsLimits(t *testing.T) {
	for _, ranks := range commtest.Sizes(t, 2) {
		commtest.OnRanks(t, ranks, nil, func(pg *comm.ProcessGroup) error {
			all, j, lines := trials(pg.Device()), newJob(pg), 0
			for _, c := range all {
				c.steps = 16
				verdicts, err := c.run(t.Context(), j, regexp.MustCompile(""))
				if err != nil {
					return err
				}
				if pg.Rank() == 0 && len(verdicts) != len(c.ways) {
					return fmt.Errorf("%d verdicts for %d ways", len(verdicts), len(c.ways))
				}
				for _, v := range verdicts {
					if lines++; !v.ok() {
						t.Error(v)
					}
				}
			}
			if pg.Rank() == 0 && lines < 50 {
				return fmt.Errorf("%d ways, want at least 50", lines)
			}
			return nil
		})
	}
}

// TestSmallMistakesMissALimit trains on the ranks with one small mistake each.
func TestSmallMistakesMissALimit(t *testing.T) {
	testkit.Long(t)
	exact := recipe{params: device.Float64, steps: 20, optimizer: sgd}
	uneven, branches := exact, exact
	uneven.uneven = true
	branches.branches, branches.branch = 3, func(rank, step int) int { return (rank + step) % 3 }
	single, bf16, fp16 := exact, exact, exact
	single.params = device.Float32
	bf16.params, bf16.compute = device.BFloat16, device.Float32
	fp16.params, fp16.compute, fp16.scalesLoss = device.Float16, device.Float32, true
	wide, long := bf16, single
	wide.sumsInFloat32, long.steps = true, 60

	// by returns a mutation that changes the options of SGD on the ranks.
	by := func(change func(o *optim.SGDOptions)) func(r *recipe, rank int) {
		return func(r *recipe, rank int) {
			r.optimizer = func(params []*nn.Parameter) (zero.Local, error) {
				o := optim.SGDOptions{LR: 0.02, Momentum: 0.9, WeightDecay: 1e-3, MasterWeights: true}
				change(&o)
				return optim.NewSGD(params, &o)
			}
		}
	}
	scaledBy := func(x float64) settings {
		return hook(func() reducer.Hook {
			return commhook.Func(func(b reducer.GradBucket) (device.Tensor, reducer.Reduction) {
				dev := b.Group.Device()
				if err := dev.Kernels().Axpby(dev.Compute(), b.Flat, device.Accum{Alpha: x}, b.Flat); err != nil {
					panic(err)
				}
				return b.Flat, b.Group.AllReduce(b.Flat, b.Op)
			})
		})
	}
	for _, c := range []struct {
		way    way // the name says the mistake; "nothing" is the case without one
		recipe recipe
		mutate func(r *recipe, rank int) // changes the recipe of the ranks; nil changes nothing
		differ bool                      // the ranks must end with different parameters
	}{
		{way: way{name: "nothing"}, recipe: exact},
		{way: way{name: "gradients are summed", options: scaledBy(2)}, recipe: exact},
		{way: way{name: "gradients are off by 1e-6", options: scaledBy(1 + 1e-6)}, recipe: exact},
		{way: way{name: "a learning rate off by 1e-6"}, recipe: exact, mutate: by(func(o *optim.SGDOptions) { o.LR *= 1 + 1e-6 })},
		{way: way{name: "a learning rate off by 1e-5, in float32"}, recipe: long, mutate: by(func(o *optim.SGDOptions) { o.LR *= 1 + 1e-5 })},
		{way: way{name: "no weight decay"}, recipe: exact, mutate: by(func(o *optim.SGDOptions) { o.WeightDecay = 0 })},
		{way: way{name: "shards with another momentum on a rank", usesZeRO: true}, recipe: exact, mutate: func(r *recipe, rank int) {
			if rank == 1 {
				by(func(o *optim.SGDOptions) { o.Momentum = 0.8 })(r, rank)
			}
		}},
		{way: way{name: "weights are not sent", options: with(ddp.Options{SkipInitSync: true})}, recipe: exact, differ: true},
		{way: way{name: "nothing is reduced", options: hook(commhook.Noop)}, recipe: exact, differ: true},
		{way: way{name: "float16 in between, of float32", options: hook(func() reducer.Hook { return commhook.FP16(nil) })}, recipe: single},
		{way: way{name: "replicas that diverge", options: hook(func() reducer.Hook {
			return commhook.PostLocalSGD(&commhook.PostLocalSGDOptions{StartAfter: 10})
		})}, recipe: exact, differ: true},
		{way: way{name: "another branch", options: with(ddp.Options{FindUnusedParameters: true})}, recipe: branches, mutate: func(r *recipe, _ int) {
			r.branch = func(rank, step int) int { return (rank + step + step/19) % 3 }
		}},
		{way: way{name: "divided by the active ranks"}, recipe: uneven, mutate: func(r *recipe, _ int) { r.dividesByActive = true }},
		{way: way{name: "shards divided by the active ranks", usesZeRO: true}, recipe: uneven, mutate: func(r *recipe, _ int) { r.dividesByActive = true }},
		{way: way{name: "no masters"}, recipe: bf16, mutate: by(func(o *optim.SGDOptions) { o.MasterWeights = false })},
		{way: way{name: "reduced in bfloat16"}, recipe: wide},
		{way: way{name: "no loss scale"}, recipe: fp16, mutate: func(r *recipe, _ int) { r.scalesLoss = false }},
		{way: way{name: "a hook that loses, of sums", options: scaledBy(1.05), tolerance: 0.001}, recipe: long},
	} {
		t.Run(c.way.name, func(t *testing.T) {
			commtest.OnGoroutines(t, 2, nil, func(pg *comm.ProcessGroup) error {
				j := newJob(pg)
				want, err := c.recipe.trainReference(t.Context(), j)
				if err != nil {
					return err
				}
				mutated := c.recipe
				if c.mutate != nil {
					c.mutate(&mutated, pg.Rank())
				}
				got, err := c.way.train(t.Context(), j, mutated)
				if err != nil {
					return err
				}
				ranks, err := comm.GatherObject(t.Context(), pg, got.shared, 0)
				if err != nil || pg.Rank() != 0 {
					return err
				}
				v := c.recipe.judge(c.way, want, got, ranks)
				t.Log(v)
				if isRight := c.way.name == "nothing"; v.ok() != isRight || (v.differ > 0) != c.differ {
					t.Errorf("ok: %v, %d ranks differ", v.ok(), v.differ)
				}
				return nil
			})
		})
	}
}

func TestNaNMissesTheLimit(t *testing.T) {
	nan := math.NaN()
	for _, v := range []verdict{
		{losses: nan, lossLimit: 1}, {lossLimit: nan}, {parameters: nan, parameterLimit: math.Inf(1)}, {parameterLimit: nan},
	} {
		if v.ok() {
			t.Error(v)
		}
	}
	if x := maxLossDifference(map[int]float64{0: 1, 1: 1}, map[int]float64{0: nan, 1: 1}); !math.IsNaN(x) {
		t.Errorf("the difference of losses with a NaN is %v", x)
	}
	if x := maxLossDifference(map[int]float64{0: 1}, map[int]float64{}); !math.IsNaN(x) {
		t.Errorf("the difference of losses that no rank has is %v", x)
	}
}
