package cuda

import (
	"cmp"
	"log/slog"

	"github.com/goddp/goddp/device"
)

// Options configure [Open]. The zero value is the default.
type Options struct {
	// AllowTF32 allows matrix products and convolutions of float32 to round their operands to TF32, which has 11
	// significant bits. Tensor cores multiply TF32 about six times as fast.
	AllowTF32 bool
	// TuneConvolutions times cuDNN's kernels at the first convolution of each shape and selects the fastest, as
	// torch.backends.cudnn.benchmark does. That convolution waits for the device. Two ranks or two runs may round
	// differently.
	TuneConvolutions bool
	// Nondeterministic allows a nondeterministic backward pass of attention, as in PyTorch by default. cuDNN
	// then needs less time and less scratch memory. Runs with the same inputs differ by rounding.
	Nondeterministic bool
	// MemoryLimit is the maximum device memory that Alloc uses, in bytes. 0 means no limit.
	MemoryLimit int64
	// CacheDir is the folder for compiled kernels; default goddp/kernels in the user's cache folder.
	CacheDir string
	// Log receives, at debug level, the GPU and the libraries that were found; default
	// slog.Default().
	Log *slog.Logger
}

// Count returns the number of GPUs. If it is 0, the error says why.
func Count() (int, error) { return count() }

// Open opens the GPU with an ordinal from 0 to Count()-1, in the numbering of CUDA_VISIBLE_DEVICES.
// It loads CUDA's libraries and all kernels. The first Open on a machine compiles the kernels.
// That takes about 12 seconds with 16 cores, and two minutes with one. The error is a *dl.NotFoundError if a library is missing, and an
// [*Error] if a call to a library failed.
func Open(ordinal int, opts *Options) (device.Device, error) {
	o := *cmp.Or(opts, &Options{})
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return open(ordinal, o)
}
