package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/goddp/goddp/device/cuda"
	"github.com/goddp/goddp/internal/jobenv"
)

// Placeholders for the non-numeric values of --nproc-per-node, until countWorkers has replaced them.
const (
	gpuWorkers  = -1
	autoWorkers = -2
)

// countFlag is the sole argument of the child golaunch process that countGPUs starts to count the GPUs.
const countFlag = "--count-gpus"

// countWorkers finds the number of workers of --nproc-per-node gpu and auto.
func (o *options) countWorkers() error {
	if o.nproc != gpuWorkers && o.nproc != autoWorkers {
		return nil
	}
	n, err := countGPUs()
	switch {
	case err != nil:
		return fmt.Errorf("--nproc-per-node: counting the GPUs: %w: give a number instead", err)
	case n > 0:
		o.nproc = n
	case o.nproc == autoWorkers:
		o.nproc = runtime.NumCPU()
	default:
		visible, isSet := os.LookupEnv(jobenv.GPUsVar)
		if isSet {
			visible = fmt.Sprintf(" that %s=%q shows", jobenv.GPUsVar, visible)
		}
		return usagef("--nproc-per-node gpu: there is no GPU here%s", visible)
	}
	return nil
}

// countGPUs returns the number of GPUs visible to the workers. Only CUDA knows which entries of
// CUDA_VISIBLE_DEVICES are valid. A child process queries it, so that golaunch holds no driver
// resources and cannot hang in the driver.
func countGPUs() (int, error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	const limit = time.Minute
	var out, why strings.Builder
	cmd := exec.Command(self, countFlag)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &why, time.Second
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	late := time.AfterFunc(limit, func() { _ = cmd.Process.Kill() }) // if it fails, the process has ended
	err = cmd.Wait()
	switch {
	case !late.Stop():
		return 0, fmt.Errorf("CUDA has not answered in %v", limit)
	case err != nil && why.Len() > 0:
		return 0, errors.New(strings.TrimSpace(why.String()))
	case err != nil:
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(out.String()))
}

// printGPUs prints the number of GPUs, and returns the exit code.
func printGPUs() int {
	n, err := cuda.Count()
	const noDevice = 100 // CUDA_ERROR_NO_DEVICE: there is none, or CUDA_VISIBLE_DEVICES hides all
	var failure *cuda.Error
	if isHidden := errors.As(err, &failure) && failure.Code == noDevice; err != nil && !isHidden {
		if files, _ := filepath.Glob("/dev/nvidia[0-9]*"); len(files) > 0 { // the pattern is well formed
			fmt.Fprintln(os.Stderr, err)
			return exitFailure
		}
	}
	fmt.Println(n)
	return 0
}
