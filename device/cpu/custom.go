package cpu

import "github.com/goddp/goddp/device"

// Launch runs the kernel's Go function.
func (k *kernelSet) Launch(_ device.Stream, kernel *device.Kernel, g device.Grid, args ...any) error {
	kernel.Run(g, args)
	return nil
}
