package main

import (
	"context"
	"math/rand/v2"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/test/internal/compare"
)

// reference is what a single process comes to.
type reference struct {
	*outcome
	lossGap, parameterGap float64 // what two other orders of the samples change
}

// alone trains on rank 0; the others only take part in making its group.
func (r *recipe) alone(ctx context.Context, j *job) (*reference, error) {
	var one *comm.ProcessGroup
	if r.wide {
		var err error
		if one, err = j.Split(ctx, j.Rank(), 0); err != nil {
			return nil, err
		}
		defer one.Close()
	}
	if j.Rank() != 0 {
		return nil, nil
	}
	want, err := r.single(ctx, j, one, nil)
	if err != nil {
		return nil, err
	}
	ref := &reference{outcome: want}
	for _, loss := range want.Losses {
		ref.lossGap = max(ref.lossGap, 0x1p-23*loss) // what Float32 can tell apart
	}
	for seed := range uint64(2) {
		other, err := r.single(ctx, j, one, rand.New(rand.NewPCG(1, seed)))
		if err != nil {
			return nil, err
		}
		ref.lossGap = max(ref.lossGap, farthest(want.Losses, other.Losses))
		ref.parameterGap = max(ref.parameterGap, compare.Worst(want.final, other.final))
	}
	return ref, nil
}

// bare is a model that reduces nothing.
type bare struct{ *network }

func (bare) NoSync(f func() error) error { return f() }

// single trains on the samples of all ranks: in their order, or shuffled. The
// process is a group of one, or in none.
func (r *recipe) single(ctx context.Context, j *job, one *comm.ProcessGroup, shuffle *rand.Rand) (*outcome, error) {
	net, err := r.network(j.Device(), 1)
	if err != nil {
		return nil, err
	}
	t, err := r.trainer(net)
	if err != nil {
		return nil, err
	}
	t.model = bare{net}
	if t.opt, err = r.optimizer(net.Parameters()); err != nil {
		return nil, err
	}
	if one != nil {
		if t.model, err = ddp.New(net, one, &ddp.Options{ReduceDType: device.Float32}); err != nil {
			return nil, err
		}
	}
	for step := range r.steps {
		parts, active := r.parts(step, j.Size())
		if shuffle != nil {
			r.shuffle(parts, shuffle)
		}
		var passes []pass
		for _, p := range parts {
			passes = append(passes, j.pass(r, step, p, 1/float64(len(parts))))
		}
		factor := 1.0
		if !r.byActive {
			factor = float64(active) / float64(j.Size())
		}
		if err := t.step(ctx, step, passes, factor); err != nil {
			return nil, err
		}
	}
	return t.finish(ctx)
}

// parts are a step's samples, by passes of one size, and how many ranks have some.
func (r *recipe) parts(step, ranks int) (parts []part, active int) {
	var all []int
	for rank := range ranks {
		if r.has(rank, ranks, step) {
			numbers := samplesOf(rank, ranks, step)
			parts, all = append(parts, part{rank, numbers}), append(all, numbers...)
		}
	}
	active = len(parts)
	if r.branch == nil && !r.rounded() {
		parts = []part{{numbers: all}}
	}
	return parts, active
}

// shuffle gives samples another place: any, or, where each pass has a branch of its
// own, another within their pass.
func (r *recipe) shuffle(parts []part, random *rand.Rand) {
	swap := func(numbers []int) {
		random.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	}
	if r.branch != nil {
		for _, p := range parts {
			swap(p.numbers)
		}
		return
	}
	var all []int
	for _, p := range parts {
		all = append(all, p.numbers...)
	}
	swap(all)
	for i, p := range parts {
		parts[i].numbers, all = all[:len(p.numbers)], all[len(p.numbers):]
	}
}
