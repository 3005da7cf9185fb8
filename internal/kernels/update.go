package kernels

import "github.com/goddp/goddp/device"

// Update is a step of an optimizer in the form that all of them have: what a device computes with.
type Update struct {
	Op                  string // for errors
	Param, Grad, Master device.Tensor
	Skip, Overflow, At  device.Tensor
	State               [3]device.Tensor
	Kept                [3]bool // whether the rule keeps the State; the Tensor is not used if it does not
	// Numbers are the factors of the rule. At holds the first Varying of them, if it is present.
	Numbers [10]float64
	Varying int
	Flags   [2]bool
}

// unscale returns the factor that undoes a loss scale.
func unscale(lossScale float64) float64 {
	if lossScale == 0 {
		return 1
	}
	return 1 / lossScale
}
