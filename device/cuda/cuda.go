package cuda

import (
	"log/slog"

	"github.com/goddp/goddp/device"
)

// Options are the choices of [Open]; the zero value is the good default.
type Options struct {
	// AllowTF32 lets matrix products of float32 round their operands to
	// TF32's 11 bits, which tensor cores multiply about six times as fast.
	AllowTF32 bool
	// TuneMatMul times cuBLAS's candidates at the first product of every
	// shape and keeps the fastest, instead of trusting its estimate, which is
	// good for large products; and decides by time whether the gradient of a
	// Linear's bias is fused with its weight's. The first product of a shape
	// then waits for the device, and two runs of a program may round
	// differently.
	TuneMatMul bool
	// MemoryLimit bounds the device memory that Alloc uses, in bytes; 0 is
	// no bound but the hardware's.
	MemoryLimit int64
	// CacheDir is where compiled kernels are kept; empty is
	// goddp/kernels in the user's cache folder.
	CacheDir string
	// Log is told what was found, at debug level; nil is slog.Default().
	Log *slog.Logger
}

// Count is the number of GPUs. Where it is 0 the error says why.
func Count() (int, error) { return count() }

// Open makes a device of the GPU with an ordinal from 0 to Count()-1, as
// CUDA_VISIBLE_DEVICES numbers them. It loads CUDA's libraries and all
// kernels; the first time on a machine that compiles them, which takes some
// seconds. The error is a *dl.NotFoundError for a missing library, an [*Error]
// for a call that failed.
func Open(ordinal int, opts *Options) (device.Device, error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return open(ordinal, o)
}
