package comm

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/jobenv"
)

// OpenDevice opens the device that Init would open with the same options. It is for programs
// that use one device for several groups. Such a program passes the device to Init in
// Options.Device, and closes the device after the last group.
func OpenDevice(opts *Options) (device.Device, error) {
	o := opts.orDefaults()
	w, err := o.world()
	if err != nil {
		return nil, err
	}
	return openDevice(w, o.Log)
}

// openDevice opens the device for a local rank. It is the device that GODDP_DEVICE names
// ("cpu", "cuda", "cuda:1"). If GODDP_DEVICE is not set, it is the GPU whose number is the
// local rank or, on a host without GPUs, the CPU.
func openDevice(w World, log *slog.Logger) (device.Device, error) {
	name := os.Getenv(jobenv.DeviceVar)
	kind, number, chosen := strings.Cut(name, ":")
	ordinal := w.LocalRank
	switch {
	case name == "cpu":
		return openCPU(w, log)
	case kind == "cuda" && chosen:
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return nil, fmt.Errorf(jobenv.DeviceVar+" is %q, want cpu, cuda, or cuda:N with a GPU's number N", name)
		}
		ordinal = n
	case name != "" && name != "cuda":
		return nil, fmt.Errorf(jobenv.DeviceVar+" is %q, want cpu, cuda, or cuda:N with a GPU's number N", name)
	}
	gpus, why := cuda.Count()
	switch {
	case gpus == 0 && name == "":
		if w.LocalRank == 0 && isUnusable(why, "/dev") {
			log.Warn("this host has an NVIDIA GPU that cannot be used: computing on the CPU ("+jobenv.DeviceVar+"=cpu chooses it)", "why", why)
		} else {
			log.Debug("no GPU: computing on the CPU", "why", why)
		}
		return openCPU(w, log)
	case gpus == 0:
		return nil, fmt.Errorf(jobenv.DeviceVar+" is %q: %w", name, why)
	case ordinal >= gpus:
		return nil, fmt.Errorf("GPU %d for local rank %d of %d: this host has %d; start fewer workers on it, or set "+jobenv.DeviceVar+"=cpu", ordinal, w.LocalRank, w.LocalSize, gpus)
	}
	tf32, err := jobenv.Bool(os.Getenv, false, jobenv.AllowTF32Var)
	if err != nil {
		return nil, err
	}
	tune, err := jobenv.Bool(os.Getenv, false, jobenv.TuneMatMulVar)
	if err != nil {
		return nil, err
	}
	anyOrder, err := jobenv.Bool(os.Getenv, false, jobenv.NondeterministicVar)
	if err != nil {
		return nil, err
	}
	return cuda.Open(ordinal, &cuda.Options{AllowTF32: tf32, TuneMatMul: tune, Nondeterministic: anyOrder, Log: log})
}

// isUnusable reports whether the host has a GPU's device file in the folder dev, although CUDA counts no GPU and
// gives another reason than that there is none. CUDA_VISIBLE_DEVICES hides GPUs for that reason.
func isUnusable(why error, dev string) bool {
	const noDevice = 100 // CUDA_ERROR_NO_DEVICE
	var e *cuda.Error
	if errors.As(why, &e) && e.Code == noDevice {
		return false
	}
	files, _ := filepath.Glob(filepath.Join(dev, "nvidia[0-9]*")) // the pattern is valid
	return len(files) > 0
}

// openCPU opens the CPU. Only local rank 0 logs whether OpenBLAS was found, so that there is
// one such log line for each host.
func openCPU(w World, log *slog.Logger) (device.Device, error) {
	if w.LocalRank != 0 {
		log = slog.New(slog.DiscardHandler)
	}
	n, err := jobenv.Threads(os.Getenv, w.LocalSize)
	if err != nil {
		return nil, err
	}
	return cpu.New(&cpu.Options{Threads: n, Log: log}), nil
}
