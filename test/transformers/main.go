// Command transformers runs a model of a folder of the Hugging Face hub, for hf/testdata/transformers_check.py, which
// compares it with Hugging Face's transformers:
//
//	transformers [--dtype bfloat16] [--save OTHER [--shard BYTES]] [--adapters PEFT [--merge | --save-adapters OTHER]] FOLDER TOKENS OUT
//
// TOKENS is a safetensors file with tokens, int64 [steps rows n+1]. The command writes the safetensors file OUT with the
// logits of the first step and, in float32, the losses of all steps of AdamW, and the logits of the first step's tokens
// after all steps. It saves the folder before the first step, and the adapters after the last.
// GODDP_DEVICE chooses the device.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint/safetensors"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/internal/files"
	"github.com/goddp/goddp/lora"
	"github.com/goddp/goddp/optim"
)

var (
	dtype = flag.String("dtype", "float32", "`type` of the parameters, float32 or bfloat16")
	save  = flag.String("save", "", "save the model to `folder`")
	shard = flag.Int64("shard", 0, "maximum size of a saved file in bytes")
	peft  = flag.String("adapters", "", "add the adapters of `folder`, and train them alone")
	merge = flag.Bool("merge", false, "merge the adapters first")
	keep  = flag.String("save-adapters", "", "save the adapters to `folder`")
)

func run(ctx context.Context) error {
	dt, ok := map[string]device.DType{"float32": device.Float32, "bfloat16": device.BFloat16}[*dtype]
	if !ok || flag.NArg() != 3 || *peft == "" && (*merge || *keep != "") {
		return errors.New("want [--dtype float32|bfloat16] [--save OTHER [--shard BYTES]] [--adapters PEFT [--merge | --save-adapters OTHER]] FOLDER TOKENS OUT")
	}
	dev, err := comm.OpenDevice(nil)
	if err != nil {
		return err
	}
	defer dev.Close()
	f, err := hf.Load(flag.Arg(0), dev, &hf.LoadOptions{DType: dt})
	if err != nil {
		return err
	}
	var adapters *lora.Adapters
	if *peft != "" {
		if adapters, err = lora.Load(f.Model, *peft); err != nil {
			return err
		}
	}
	if *merge {
		if err := adapters.Merge(); err != nil {
			return err
		}
	}
	if *save != "" {
		if err := f.Save(ctx, *save, &hf.SaveOptions{ShardSize: *shard}); err != nil {
			return err
		}
	}
	in, err := safetensors.Open(flag.Arg(1))
	if err != nil {
		return err
	}
	defer in.Close()
	content, err := in.Read("tokens")
	if err != nil {
		return err
	}
	shape := in.Tensors()["tokens"].Shape
	if len(shape) != 3 {
		return fmt.Errorf("%s: tokens have shape %v, want [steps rows n+1]", flag.Arg(1), shape)
	}
	tokens := autograd.FromBytes(dev, device.Int64, shape, content)
	opt, err := optim.NewAdamW(f.Model.Parameters(), &optim.AdamWOptions{LR: 1e-3, Betas: [2]float64{0.9, 0.95}, WeightDecay: 0.1})
	if err != nil {
		return err
	}
	out := map[string]safetensors.Source{}
	var losses []byte
	sample := func(step int) (ids, next *autograd.Variable) {
		rows := autograd.Reshape(autograd.Slice(tokens, 0, step, step+1, 1), shape[1:]...)
		return autograd.Slice(rows, 1, 0, shape[2]-1, 1), autograd.Slice(rows, 1, 1, shape[2], 1)
	}
	logits := func(name string) (err error) {
		autograd.NoGrad(dev, func() {
			ids, _ := sample(0)
			y := f.Model.Forward(ids, nil)
			var content []byte
			content, err = y.Bytes(ctx)
			out[name] = safetensors.Bytes(dt, y.Shape(), content)
		})
		return err
	}
	if err := logits("logits"); err != nil {
		return err
	}
	for step := range shape[0] {
		if dt != device.Float32 {
			break
		}
		ids, next := sample(step)
		loss := f.Model.Loss(ids, next, nil)
		if err := loss.Backward(nil); err != nil {
			return err
		}
		if losses, err = binary.Append(losses, binary.LittleEndian, loss.Item()); err != nil {
			return err
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
	}
	if losses != nil {
		out["losses"] = safetensors.Bytes(device.Float64, device.Shape{shape[0]}, losses)
		if err := logits("tuned"); err != nil {
			return err
		}
	}
	if *keep != "" {
		if err := adapters.Save(ctx, *keep, flag.Arg(0)); err != nil {
			return err
		}
	}
	return files.Write(flag.Arg(2), 0o666, func(w io.Writer) error { return safetensors.Write(w, out, nil) })
}

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "transformers:", err)
		os.Exit(1)
	}
}
