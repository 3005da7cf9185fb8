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

// trial is a recipe and the ways in which the ranks train it.
type trial struct {
	recipe
	ways []way
}

// trials returns all trials for a device.
func trials(dev device.Device) []trial {
	return slices.Concat(
		full(device.Float64, 20, lossless),
		full(device.Float32, 200, slices.Concat(lossless, lossy)),
		half(dev, 200),
	)
}

// full returns the trials whose parameters, products and sums have type dt. ways are the ways of the first
// trial, which is plain SGD.
func full(dt device.DType, steps int, ways []way) []trial {
	bySGD := recipe{params: dt, steps: steps, optimizer: sgd}
	byAdamW := bySGD
	byAdamW.optimizer = adamW
	branches, static := bySGD, bySGD
	branches.branches, branches.branch = 3, func(rank, step int) int { return (rank + step) % 3 }
	static.branches, static.branch = 3, func(rank, _ int) int { return rank % 2 }
	uneven := bySGD
	uneven.uneven = true
	active, unevenBranches := uneven, branches
	active.dividesByActive, unevenBranches.uneven = true, true

	unused, graph := with(ddp.Options{FindUnusedParameters: true}), with(ddp.Options{StaticGraph: true})
	return []trial{
		{bySGD, ways},
		{byAdamW, []way{
			{name: "AdamW"},
			{name: "AdamW, ZeRO-1", usesZeRO: true},
		}},
		{branches, []way{
			{name: "unused parameters", options: unused},
			{name: "unused parameters, accumulating", passes: 2, options: unused},
			{name: "unused parameters, ZeRO-1", options: unused, usesZeRO: true},
		}},
		{static, []way{
			{name: "static graph", options: graph},
			{name: "static graph, accumulating", passes: 2, options: graph},
		}},
		{uneven, []way{
			{name: "join"},
			{name: "join, accumulating", passes: 2},
			{name: "join, hook AllReduce", options: hook(commhook.AllReduce)},
			{name: "join, ZeRO-1", usesZeRO: true},
			{name: "join, ZeRO-1, accumulating", passes: 2, usesZeRO: true},
		}},
		{active, []way{
			{name: "join, by the active ranks"},
			{name: "join, by the active ranks, accumulating", passes: 2},
			{name: "join, by the active ranks, ZeRO-1", usesZeRO: true},
		}},
		{unevenBranches, []way{{name: "join, unused parameters", options: unused}}},
	}
}

// lossless are the ways that reduce all bits of the gradients.
var lossless = []way{
	{name: "plain"},
	{name: "plain, one bucket", options: defaults},
	{name: "accumulating", passes: 2},
	{name: "ZeRO-1", usesZeRO: true},
	{name: "ZeRO-1, accumulating", passes: 2, usesZeRO: true},
	{name: "hook AllReduce", options: hook(commhook.AllReduce)},
	{name: "hook AllReduce, accumulating", passes: 2, options: hook(commhook.AllReduce)},
	{name: "hook PowerSGD, before it starts", options: powerSGD(commhook.PowerSGDOptions{})},
	{name: "hook PostLocalSGD, before it starts", options: hook(func() reducer.Hook {
		return commhook.PostLocalSGD(&commhook.PostLocalSGDOptions{StartAfter: 1000})
	})},
	{name: "hook PostLocalSGD, subgroup of all ranks", options: func(pg *comm.ProcessGroup) (*ddp.Options, error) {
		all, err := pg.Split(context.Background(), 0, pg.Rank())
		if err != nil {
			return nil, err
		}
		return &ddp.Options{Hook: commhook.PostLocalSGD(&commhook.PostLocalSGDOptions{StartAfter: 5, Subgroup: all}), BucketCapMB: small}, nil
	}},
}

// lossy are the ways whose hooks send fewer bits.
var lossy = []way{
	{name: "hook BF16", tolerance: 0.001, options: hook(func() reducer.Hook { return commhook.BF16(nil) })},
	{name: "hook FP16", tolerance: 0.001, options: hook(func() reducer.Hook { return commhook.FP16(nil) })},
	{name: "hook Int8", tolerance: 0.001, options: hook(commhook.Int8)},
	{name: "hook PowerSGD of rank 4", tolerance: 0.03, options: powerSGD(commhook.PowerSGDOptions{Rank: 4, StartAfter: -1})},
}

// half returns the trials in 16 bits. On a device without 16-bit products, only the parameters have 16
// bits.
func half(dev device.Device, steps int) []trial {
	compute, native := device.Float32, dev.String() != "cpu"
	if native {
		compute = device.Invalid
	}
	bf16 := recipe{params: device.BFloat16, compute: compute, steps: steps, optimizer: sgd}
	fp16 := recipe{params: device.Float16, compute: compute, steps: steps, optimizer: sgd, scalesLoss: true}
	wide := bf16
	wide.sumsInFloat32 = true
	all := []trial{
		{bf16, []way{{name: "masters"}, {name: "masters, ZeRO-1", usesZeRO: true}}},
		{wide, []way{{name: "masters, ReduceDType Float32", options: with(ddp.Options{ReduceDType: device.Float32})}}},
		{fp16, []way{{name: "masters, loss scale"}, {name: "masters, loss scale, ZeRO-1", usesZeRO: true}}},
	}
	if native {
		bf16.params, bf16.compute = device.Float32, device.BFloat16
		fp16.params, fp16.compute = device.Float32, device.Float16
		all = append(all,
			trial{bf16, []way{{name: "converted"}, {name: "converted, ZeRO-1", usesZeRO: true}}},
			trial{fp16, []way{{name: "converted, loss scale"}}})
	}
	return all
}

// defaults returns package ddp's default options: a network this small has one bucket.
func defaults(*comm.ProcessGroup) (*ddp.Options, error) { return nil, nil }

// with returns settings that make these options with a bucket for each layer.
func with(o ddp.Options) settings {
	o.BucketCapMB = small
	return func(*comm.ProcessGroup) (*ddp.Options, error) { return &o, nil }
}

// hook returns settings that make a new hook for each model.
func hook(make func() reducer.Hook) settings {
	return func(pg *comm.ProcessGroup) (*ddp.Options, error) { return with(ddp.Options{Hook: make()})(pg) }
}

func powerSGD(o commhook.PowerSGDOptions) settings {
	return func(pg *comm.ProcessGroup) (*ddp.Options, error) {
		h, err := commhook.NewPowerSGD(&o)
		if err != nil {
			return nil, err
		}
		return with(ddp.Options{Hook: h})(pg)
	}
}
