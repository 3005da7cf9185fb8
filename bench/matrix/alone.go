package main

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
)

// reference is what a single process comes to.
type reference struct {
	*outcome
	losses, parameters float64 // the gaps: what another order of samples changes
}

// alone trains on rank 0, all others wait.
func (r *recipe) alone(ctx context.Context, pg *comm.ProcessGroup) (*reference, error) {
	one, err := pg.Split(ctx, pg.Rank(), 0)
	if err != nil {
		return nil, err
	}
	defer one.Close()
	if pg.Rank() != 0 {
		return &reference{}, nil
	}
	want, err := r.single(ctx, one, pg.Size(), false)
	if err != nil {
		return nil, err
	}
	other, err := r.single(ctx, one, pg.Size(), true)
	if err != nil {
		return nil, err
	}
	floor := 0x1p-23 * slices.Max(want.Losses)
	return &reference{want, max(farthest(want.Losses, [][]float64{other.Losses}), floor), worst(want.final, other.final)}, nil
}

// bare is a model that reduces nothing.
type bare struct{ *network }

func (bare) NoSync(f func() error) error { return f() }

// single trains on the samples of so many ranks, in the order of the ranks or
// shuffled.
func (r *recipe) single(ctx context.Context, one *comm.ProcessGroup, ranks int, shuffled bool) (*outcome, error) {
	dev := one.Device()
	net, err := r.network(dev, 1)
	if err != nil {
		return nil, err
	}
	t := &trainer{net: net, model: bare{net}, scaler: r.scaler()}
	if r.grouped {
		if t.model, err = ddp.New(net, one, &ddp.Options{ReduceDType: device.Float32}); err != nil {
			return nil, err
		}
	}
	t.opt = r.optimizer(net.Parameters())
	data, random := draw(ranks), rand.New(rand.NewPCG(3, 4))
	for step := range r.steps {
		parts, active := r.parts(step, ranks)
		if shuffled {
			r.shuffle(parts, random)
		}
		var passes []pass
		for rank, part := range parts {
			x, y := data.take(dev, r.inputType(), part)
			p := pass{x: x, y: y, weight: 1 / float64(len(parts))}
			if r.branch != nil {
				p.branch = r.branch(rank, step)
			}
			passes = append(passes, p)
		}
		factor := float64(active) / float64(ranks)
		if r.byActive {
			factor = 1
		}
		if err := t.step(ctx, passes, factor); err != nil {
			return nil, err
		}
	}
	return t.finish(ctx)
}

// parts are the numbers of a step's samples, by passes of one size, and how many
// ranks have some.
func (r *recipe) parts(step, ranks int) (parts [][]int, active int) {
	for rank := range ranks {
		if r.has(rank, ranks, step) {
			parts = append(parts, of(rank, ranks, step))
		}
	}
	active = len(parts)
	if r.branch == nil && !r.half() {
		parts = [][]int{slices.Concat(parts...)}
	}
	return parts, active
}

// shuffle gives samples another place: any, or, where each pass has a branch of its
// own, another within their pass.
func (r *recipe) shuffle(parts [][]int, random *rand.Rand) {
	swap := func(part []int) {
		random.Shuffle(len(part), func(i, j int) { part[i], part[j] = part[j], part[i] })
	}
	if r.branch != nil {
		for _, part := range parts {
			swap(part)
		}
		return
	}
	all := slices.Concat(parts...)
	swap(all)
	for i := range parts {
		n := copy(parts[i], all)
		all = all[n:]
	}
}

// worst is the greatest ‖got - want‖/‖want‖ of a tensor, by Euclidean norm.
func worst(want, got [][]float64) float64 {
	greatest := 0.0
	for i := range want {
		var difference, norm float64
		for j, w := range want[i] {
			d := got[i][j] - w
			difference += d * d
			norm += w * w
		}
		greatest = max(greatest, math.Sqrt(difference/norm))
	}
	return greatest
}

// farthest is the greatest difference of a step's loss from the mean of the losses
// of those ranks that have made it.
func farthest(want []float64, ranks [][]float64) float64 {
	greatest := 0.0
	for step, w := range want {
		sum, n := 0.0, 0.0
		for _, losses := range ranks {
			if step < len(losses) {
				sum += losses[step]
				n++
			}
		}
		greatest = max(greatest, math.Abs(sum/n-w))
	}
	return greatest
}
