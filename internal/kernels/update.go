package kernels

import "github.com/goddp/goddp/device"

// Update is a step of an optimizer in the form that all of them have: what a device computes with.
type Update struct {
	Op                  string // for errors
	Param, Grad, Master *device.Tensor
	Skip, Overflow, At  *device.Tensor
	State               [3]*device.Tensor // nil where the rule keeps none
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

// kept returns t, or nil if the rule does not keep it.
func kept(t *device.Tensor, isKept bool) *device.Tensor {
	if isKept {
		return t
	}
	return nil
}
