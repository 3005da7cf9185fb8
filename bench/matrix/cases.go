package main

import (
	"context"
	"slices"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/ddp/commhook"
	"github.com/goddp/goddp/ddp/reducer"
	"github.com/goddp/goddp/device"
)

// trial is a recipe and the ways to train it.
type trial struct {
	recipe
	ways []way
}

// cases are all there is to train on a device.
func cases(dev device.Device) []trial {
	var all []trial
	for _, full := range []recipe{{params: device.Float64, steps: 20}, {params: device.Float32, steps: 200}} {
		add := func(change func(r *recipe), ways ...way) {
			r := full
			change(&r)
			all = append(all, trial{r, ways})
		}
		ways := slices.Concat(plain, lossless)
		if full.params == device.Float32 {
			ways = append(ways, lossy...)
		}
		add(func(r *recipe) { r.optimizer = sgd }, ways...)
		add(func(r *recipe) { r.optimizer = adamW }, way{name: "AdamW"}, way{name: "ZeRO-1, AdamW", divided: true})
		add(func(r *recipe) {
			r.optimizer, r.branches, r.branch = sgd, 3, func(rank, step int) int { return (rank + step) % 3 }
		}, way{name: "unused parameters", options: options(ddp.Options{FindUnusedParameters: true})},
			way{name: "unused parameters, accumulating", passes: 2, options: options(ddp.Options{FindUnusedParameters: true})},
			way{name: "ZeRO-1, unused parameters", divided: true, options: options(ddp.Options{FindUnusedParameters: true})})
		add(func(r *recipe) {
			r.optimizer, r.branches, r.branch = sgd, 3, func(rank, step int) int { return rank % 2 }
		}, way{name: "unused parameters, static graph", options: options(ddp.Options{StaticGraph: true})})
		for _, byActive := range []bool{false, true} {
			suffix := map[bool]string{true: ", by the active ranks"}[byActive]
			add(func(r *recipe) {
				r.optimizer, r.byActive = sgd, byActive
				// Rank 0 runs out first.
				r.inputs = func(rank, ranks, steps int) int { return steps - steps/8*(ranks-1-rank) }
			}, way{name: "join" + suffix},
				way{name: "join" + suffix + ", accumulating", passes: 2},
				way{name: "join" + suffix + ", AllReduce", options: hook(commhook.AllReduce{})})
		}
	}
	return append(all, mixed(dev)...)
}

// options are with a bucket for each layer.
func options(o ddp.Options) func(*comm.ProcessGroup) (*ddp.Options, error) {
	return func(*comm.ProcessGroup) (*ddp.Options, error) {
		o := o
		o.BucketCapMB = small
		return &o, nil
	}
}

func hook(h reducer.Hook) func(*comm.ProcessGroup) (*ddp.Options, error) {
	return options(ddp.Options{Hook: h})
}

// powerSGD is a hook of one model.
func powerSGD(o commhook.PowerSGDOptions) func(*comm.ProcessGroup) (*ddp.Options, error) {
	return func(pg *comm.ProcessGroup) (*ddp.Options, error) {
		h, err := commhook.NewPowerSGD(&o)
		if err != nil {
			return nil, err
		}
		return hook(h)(pg)
	}
}

var plain = []way{
	{name: "plain"},
	{name: "plain, one bucket", options: func(*comm.ProcessGroup) (*ddp.Options, error) { return nil, nil }},
	{name: "accumulating", passes: 2},
	{name: "ZeRO-1, SGD with momentum", divided: true},
	{name: "ZeRO-1, accumulating", passes: 2, divided: true},
}

var lossless = []way{
	{name: "hook AllReduce", options: hook(commhook.AllReduce{})},
	{name: "hook AllReduce, accumulating", passes: 2, options: hook(commhook.AllReduce{})},
	{name: "hook PowerSGD, before it starts", options: powerSGD(commhook.PowerSGDOptions{})},
	{name: "hook PostLocalSGD, before it starts", options: hook(commhook.PostLocalSGD(&commhook.PostLocalSGDOptions{StartAfter: 1000}))},
	{name: "hook PostLocalSGD, in a subgroup of all", options: func(pg *comm.ProcessGroup) (*ddp.Options, error) {
		everybody, err := pg.Split(context.Background(), 0, pg.Rank())
		if err != nil {
			return nil, err
		}
		return hook(commhook.PostLocalSGD(&commhook.PostLocalSGDOptions{StartAfter: 5, Subgroup: everybody}))(pg)
	}},
}

var lossy = []way{
	{name: "hook BF16", lossy: 0.01, options: hook(commhook.BF16(nil))},
	{name: "hook FP16", lossy: 0.01, options: hook(commhook.FP16(nil))},
	{name: "hook Int8", lossy: 0.01, options: hook(commhook.Int8())},
	{name: "hook PowerSGD of rank 4", lossy: 0.1, options: powerSGD(commhook.PowerSGDOptions{Rank: 4, StartAfter: -1})},
}

// mixed are trainings in 16 bits. Where a device has no such products, they are in
// Float32.
func mixed(dev device.Device) []trial {
	compute := device.Float32
	if native(dev) {
		compute = device.Invalid
	}
	bf16 := recipe{params: device.BFloat16, compute: compute, steps: 200, optimizer: sgd}
	fp16 := recipe{params: device.Float16, compute: compute, steps: 200, optimizer: sgd, scaled: true}
	wide := bf16
	wide.grouped = true
	all := []trial{
		{bf16, []way{{name: "masters"}, {name: "masters, ZeRO-1", divided: true}}},
		{wide, []way{{name: "masters, reduced in float32", options: options(ddp.Options{ReduceDType: device.Float32})}}},
		{fp16, []way{{name: "masters, loss scale"}, {name: "masters, loss scale, ZeRO-1", divided: true}}},
	}
	if native(dev) {
		all = append(all,
			trial{recipe{params: device.Float32, compute: device.BFloat16, steps: 200, optimizer: sgd}, []way{{name: "plain"}, {name: "accumulating", passes: 2}}},
			trial{recipe{params: device.Float32, compute: device.Float16, steps: 200, optimizer: sgd, scaled: true}, []way{{name: "loss scale"}}})
	}
	return all
}
