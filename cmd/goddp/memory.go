package main

import (
	"fmt"

	"github.com/goddp/goddp/decoder"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/nn"
)

// memoryBeside is what CUDA, its libraries and NCCL take beside tensors, about.
const memoryBeside = 1 << 30

// estimateMemory implements "goddp memory".
func estimateMemory(args []string) error {
	var o decoder.MemoryOptions
	var recompute string
	var rank int
	var gpu float64
	var float32s, moments16 bool
	fs := newFlags("memory")
	fs.IntVar(&o.Rows, "batch", 1, "rows of a forward pass on each GPU")
	fs.IntVar(&o.Length, "length", 2048, "tokens of a row")
	fs.StringVar(&recompute, "recompute", "", "`what` the backward pass computes again: cheap, the operations that take little time, or blocks")
	fs.IntVar(&rank, "lora", 0, "train adapters of this `rank` alone")
	fs.IntVar(&o.Ranks, "ranks", 1, "number of GPUs")
	fs.IntVar(&o.Stage, "stage", 0, "`stage` of ZeRO, 1 to 3; 0: every GPU keeps all")
	fs.BoolVar(&moments16, "moments16", false, "AdamW's moments are in bfloat16")
	fs.BoolVar(&float32s, "float32", false, "parameters are in float32, not in bfloat16 with masters")
	fs.Float64Var(&gpu, "gpu", 80, "memory of a GPU in `GiB`")
	if err := parse(fs, args, `Say whether training a model fits on a GPU, before the first step, and what takes the
memory. It is an estimate from shapes: within 5 %% of measurements.

Usage:
  goddp memory [flags] DIR

DIR is a folder of the Hugging Face hub. Only its config.json is read. The model is trained
with AdamW, in bfloat16 with masters of float32; with --lora its own weights have neither
masters nor gradients.

Example:
  goddp memory Llama-3.2-1B --batch 8 --length 2048 --recompute cheap --gpu 40

Flags:
%s
Exit codes: 0 it fits; 1 it does not, or DIR cannot be read; 2 usage.
`); err != nil {
		return err
	}
	if fs.NArg() != 1 {
		return usagef("want a folder, got %d arguments", fs.NArg())
	}
	if min(o.Rows, o.Length, o.Ranks) < 1 || o.Stage < 0 || o.Stage > 3 || rank < 0 {
		return &usageError{known: true, err: fmt.Errorf("--batch %d, --length %d, --ranks %d, --stage %d and --lora %d: want at least 1 row, token and GPU, a stage from 0 to 3, and a rank of at least 0",
			o.Rows, o.Length, o.Ranks, o.Stage, rank)}
	}
	switch decoder.Recompute(recompute) {
	case decoder.RecomputeNothing, decoder.RecomputeCheap, decoder.RecomputeBlocks:
	default:
		return &usageError{known: true, err: fmt.Errorf("--recompute %q: want %s or %s", recompute, decoder.RecomputeCheap, decoder.RecomputeBlocks)}
	}
	if !(gpu > 0) {
		return &usageError{known: true, err: fmt.Errorf("--gpu %v: want more than 0 GiB", gpu)}
	}
	m, err := hf.NewModel(fs.Arg(0), decoder.Recompute(recompute))
	if err != nil {
		return err
	}
	if !float32s {
		o.MasterWeights = rank == 0
		if err := nn.Cast(m, device.BFloat16, nil); err != nil {
			return err
		}
	}
	if rank > 0 {
		if _, err := lora.Add(m, &lora.Options{Rank: rank}); err != nil {
			return err
		}
	}
	if moments16 {
		o.MomentDType = device.BFloat16
	}
	gib := func(bytes int64) float64 { return float64(bytes) / (1 << 30) }
	parts := append(m.Memory(o), decoder.MemoryPart{Name: "CUDA, its libraries and NCCL, about", Bytes: memoryBeside})
	var sum int64
	for _, p := range parts {
		sum += p.Bytes
		if p.Bytes > 0 {
			fmt.Fprintf(stdout, "%-36s %8.2f GiB\n", p.Name, gib(p.Bytes))
		}
	}
	fmt.Fprintf(stdout, "%-36s %8.2f GiB\n", "sum", gib(sum))
	if gib(sum) > gpu {
		return fmt.Errorf("it does not fit: %.2f GiB, want at most %v", gib(sum), gpu)
	}
	fmt.Fprintf(stdout, "it fits: %.2f of %v GiB are left\n", gpu-gib(sum), gpu)
	return nil
}
