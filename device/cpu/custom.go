package cpu

import "github.com/goddp/goddp/device"

// Launch runs the kernel's Go function.
func (k *kernels) Launch(_ device.Stream, kernel *device.Kernel, g device.Grid, args ...any) error {
	dt := kernel.Check(g, args)
	if g.Blocks[0] > 0 {
		kernel.Run(dt, args)
	}
	return nil
}
