// Package devicetest is the conformance suite for implementations of [device.Device]. It compares
// memory, streams and kernels with references in float64, which share no code with the
// implementations.
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func(t *testing.T) device.Device { return cpu.New(nil) })
//	}
//
// # Tolerances
//
// The type under test represents all inputs exactly. A result may differ from the reference by
// c·eps·scale. eps is half the distance from 1 to the next number of the type. scale is the sum of the
// magnitudes of the terms of the result, so a result whose terms cancel may have a larger relative
// error. c is:
//
//	8             elementwise kernels, softmax, gradients, SGD, Dequantize
//	16            sums and losses of any length: naive summation fails
//	8 + k/8       matrix products over k terms: products with 11 bits (TF32) fail
//	16            Normal; products of rows that are orthonormal
//
// Uniform, copies, conversions, hashes and the results of Quantize are exact. A kernel that runs twice
// gives the same bits twice. Operands lie at aligned addresses, and one element away from them, between
// guard bytes that must not change.
package devicetest
