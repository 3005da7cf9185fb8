package comm

import (
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/device/cuda"
)

// OpenDevice opens the device that Init with the same options would open and
// own, for a program whose device is to outlive its groups: give it to Init in
// Options.Device, and close it in the end.
func OpenDevice(opts *Options) (device.Device, error) {
	o := opts.orDefaults()
	w, err := o.world()
	if err != nil {
		return nil, err
	}
	return openDevice(w, o.Log)
}

// openDevice opens the device for a local rank: the one that GODDP_DEVICE
// names ("cpu", "cuda", "cuda:1"), or the GPU of the local rank's number, or,
// on a host without GPUs, the CPU.
func openDevice(w World, log *slog.Logger) (device.Device, error) {
	name := os.Getenv("GODDP_DEVICE")
	kind, number, chosen := strings.Cut(name, ":")
	ordinal := w.LocalRank
	switch {
	case name == "cpu":
		return openCPU(w, log)
	case kind == "cuda" && chosen:
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("GODDP_DEVICE is %q, want cpu, cuda, or cuda:N with a GPU's number N", name)
		}
		ordinal = n
	case name != "" && name != "cuda":
		return nil, fmt.Errorf("GODDP_DEVICE is %q, want cpu, cuda, or cuda:N with a GPU's number N", name)
	}
	gpus, why := cuda.Count()
	switch {
	case gpus == 0 && name == "":
		log.Debug("no GPU: computing on the CPU", "why", why)
		return openCPU(w, log)
	case gpus == 0:
		return nil, fmt.Errorf("GODDP_DEVICE is %q: %w", name, why)
	case ordinal >= gpus:
		return nil, fmt.Errorf("GPU %d for local rank %d of %d: this host has %d; start fewer workers on it, or set GODDP_DEVICE=cpu", ordinal, w.LocalRank, w.LocalSize, gpus)
	}
	tf32, err := flag("GODDP_ALLOW_TF32")
	if err != nil {
		return nil, err
	}
	tune, err := flag("GODDP_TUNE_MATMUL")
	if err != nil {
		return nil, err
	}
	return cuda.Open(ordinal, &cuda.Options{AllowTF32: tf32, TuneMatMul: tune, Log: log})
}

// flag reads a variable that is 0 or 1, or not set for 0.
func flag(name string) (bool, error) {
	switch v := os.Getenv(name); v {
	case "", "0":
		return false, nil
	case "1":
		return true, nil
	default:
		return false, fmt.Errorf("%s is %q, want 0 or 1", name, v)
	}
}

func openCPU(w World, log *slog.Logger) (device.Device, error) {
	threads, err := threadsPerRank(w)
	if err != nil {
		return nil, err
	}
	return cpu.New(&cpu.Options{Threads: threads, Log: log}), nil
}

// threadsPerRank is OMP_NUM_THREADS, as everywhere in this field, or this
// rank's share of the host's cores.
func threadsPerRank(w World) (int, error) {
	s := os.Getenv("OMP_NUM_THREADS")
	if s == "" {
		return max(1, runtime.GOMAXPROCS(0)/w.LocalSize), nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("OMP_NUM_THREADS is %q, not a number of at least 1", s)
	}
	return n, nil
}
