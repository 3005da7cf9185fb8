package kernels

import "github.com/goddp/goddp/device"

// Update is a step of any optimizer, in the common form from which a device computes the step.
type Update struct {
	Op                  string // for errors
	Param, Grad, Master *device.Tensor
	Skip, Overflow, At  *device.Tensor
	State               [3]*device.Tensor // nil where the rule keeps none
	// Narrow is the type of the state if it is narrower than the numbers that the rule updates; otherwise Invalid.
	Narrow device.DType
	// Numbers are the factors of the rule. If At is present, it holds the first Varying factors.
	Numbers [11]float64
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
