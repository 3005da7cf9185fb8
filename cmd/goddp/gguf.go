package main

import (
	"context"
	"errors"
	"runtime/debug"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/gguf"
	"github.com/goddp/goddp/hf"
)

// writeGGUF implements "goddp gguf".
func writeGGUF(args []string) error {
	var kind string
	fs := newFlags("gguf")
	fs.StringVar(&kind, "type", "", "`type` of the matrices: f32, f16, bf16, q8_0 (default: f16 if DIR's are float16, else bf16)")
	if err := parse(fs, args, `Write a model of the Hugging Face hub as a GGUF file, for llama.cpp and the programs
built on it.

Usage:
  goddp gguf [flags] DIR FILE

DIR is a folder with config.json, the weights and tokenizer.json. Each weight is in
memory only while it is converted.

Example:
  goddp gguf tuned tuned.gguf --type q8_0

Flags:
%s
Exit codes: 0 it is written; 1 DIR cannot be read or converted, or FILE not written;
2 usage.
`); err != nil {
		return err
	}
	if fs.NArg() != 2 {
		return usagef("want a folder and a file, got %d arguments", fs.NArg())
	}
	debug.SetGCPercent(20) // a weight that was written is garbage, and may be gigabytes
	f, err := hf.Open(fs.Arg(0), nil)
	if err != nil {
		return err
	}
	if kind == "" {
		kind = string(gguf.BF16)
		if f.FilesDType() == device.Float16 {
			kind = string(gguf.F16)
		}
	}
	return errors.Join(gguf.Write(context.Background(), fs.Arg(1), f.Model, f.Dir, gguf.Type(kind)), f.Close())
}
