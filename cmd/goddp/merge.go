package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/hf"
	"github.com/goddp/goddp/hf/chat"
	"github.com/goddp/goddp/hf/tokenizer"
	"github.com/goddp/goddp/lora"
)

// mergeAdapters implements "goddp merge".
func mergeAdapters(args []string) error {
	var kind string
	flags := newFlags("merge")
	flags.StringVar(&kind, "type", "", "`type` of the weights: float32, bfloat16, float16 (default: that of BASE's files)")
	if err := parse(flags, args, `Merge PEFT's adapters of low rank into their base model, converted to --type first: what
merge_and_unload and save_pretrained do.

Usage:
  goddp merge [flags] BASE ADAPTERS OUT

BASE is a folder of the Hugging Face hub, ADAPTERS one with adapter_config.json, as
examples/finetune --lora and PEFT write it. OUT becomes a folder like BASE. The host
needs memory for all weights.

Example:
  goddp merge SmolLM2-135M-Instruct tuned merged

Flags:
%s
Exit codes: 0 OUT is written; 1 a folder cannot be read, or OUT not written; 2 usage.
`); err != nil {
		return err
	}
	if flags.NArg() != 3 {
		return usagef("want three folders, got %d arguments", flags.NArg())
	}
	dt, ok := map[string]device.DType{"": device.Invalid, "float32": device.Float32, "bfloat16": device.BFloat16, "float16": device.Float16}[kind]
	if !ok {
		return usagef("--type %s: want float32, bfloat16 or float16", kind)
	}
	dev := cpu.New(nil)
	return errors.Join(merge(context.Background(), dev, dt, flags.Arg(0), flags.Arg(1), flags.Arg(2)), dev.Close())
}

func merge(ctx context.Context, dev device.Device, dt device.DType, base, adapters, out string) error {
	for _, from := range []string{base, adapters} {
		if same(from, out) {
			return fmt.Errorf("merging to %s: the folder is to be read, want another one", out)
		}
	}
	if dt == device.Invalid {
		f, err := hf.Open(base, nil)
		if err != nil {
			return err
		}
		dt = f.FilesDType()
		if err := f.Close(); err != nil {
			return err
		}
	}
	f, err := hf.Load(base, dev, &hf.LoadOptions{DType: dt})
	if err != nil {
		return err
	}
	a, err := lora.Load(f.Model, adapters)
	if err != nil {
		return err
	}
	if err := a.Merge(); err != nil {
		return err
	}
	o := &hf.SaveOptions{}
	tok, err := tokenizer.Load(base)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err == nil { // the merged model ends its answers as the template does
		template, err := chat.Load(base)
		if err != nil && !errors.Is(err, chat.ErrNoTemplate) {
			return err
		}
		o.Stop = chat.Stop(tok, template)
	}
	return f.Save(ctx, out, o)
}

// same reports whether two paths name one folder.
func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}
