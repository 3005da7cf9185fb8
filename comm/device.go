package comm

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/jobenv"
)

// OpenDevice opens the device that Init would open with the same options. It is for programs
// that use one device for several groups. Such a program passes the device to Init in
// Options.Device, and closes the device after the last group.
func OpenDevice(opts *Options) (device.Device, error) {
	j := &joiner{Options: opts.orDefaults()}
	if err := j.readWorld(); err != nil {
		return nil, err
	}
	s, err := jobenv.ReadDevice(os.LookupEnv)
	if err != nil {
		return nil, fmt.Errorf("comm: %w", err)
	}
	return openDevice(j.world, s, j.Log)
}

// openDevice returns the device of the options, or opens the one that the environment names. If it opens a device,
// it appends the function that closes it to release.
func (j *joiner) openDevice(release *releases) (device.Device, error) {
	if j.Device != nil {
		return j.Device, nil
	}
	dev, err := openDevice(j.world, j.env.Device, j.Log)
	if err == nil {
		release.addClose(dev.Close)
	}
	return dev, err
}

// openDevice opens the device for a local rank. If s does not choose a device, openDevice opens the GPU whose
// number is the local rank or, on a host without GPUs, the CPU.
func openDevice(w World, s jobenv.Device, log *slog.Logger) (device.Device, error) {
	if s.Kind == "cpu" {
		return openCPU(w, log)
	}
	gpu := s.GPU
	if gpu < 0 {
		gpu = w.LocalRank
	}
	gpus, why := cuda.Count()
	switch {
	case gpus == 0 && s.Kind == "":
		if w.LocalRank == 0 && isUnusable(why, "/dev") {
			log.Warn("this host has an NVIDIA GPU that cannot be used: computing on the CPU ("+jobenv.DeviceVar+"=cpu chooses it)", "why", why)
		} else {
			log.Debug("no GPU: computing on the CPU", "why", why)
		}
		return openCPU(w, log)
	case gpus == 0:
		return nil, fmt.Errorf("%s=%s: %w", jobenv.DeviceVar, s.Kind, why)
	case gpu >= gpus:
		return nil, fmt.Errorf("GPU %d for local rank %d of %d: this host has %d GPUs; start fewer workers on it, or set "+jobenv.DeviceVar+"=cpu", gpu, w.LocalRank, w.LocalSize, gpus)
	}
	return cuda.Open(gpu, &cuda.Options{AllowTF32: s.AllowTF32, TuneConvolutions: s.TuneConvolutions, Nondeterministic: s.Nondeterministic, Log: log})
}

// isUnusable reports whether the host has a GPU that CUDA cannot use: the folder dev holds a GPU's device file,
// and CUDA's error why is not "no device", which CUDA also returns if CUDA_VISIBLE_DEVICES hides the GPUs.
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
	n, err := jobenv.Threads(os.LookupEnv, w.LocalSize)
	if err != nil {
		return nil, err
	}
	return cpu.New(&cpu.Options{Threads: n, Log: log}), nil
}
