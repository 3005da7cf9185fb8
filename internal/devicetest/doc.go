// Package devicetest is the conformance suite of [device.Device]: what every
// implementation of memory, streams and kernels must do, checked against
// references in float64 that share no code with any of them.
//
//	func TestConformance(t *testing.T) {
//		devicetest.Run(t, func(t *testing.T) device.Device { return cpu.New(nil) })
//	}
//
// # Tolerances
//
// Inputs are exact in the type under test. A result may differ from the
// reference by c·eps·scale: eps is half the distance from 1 to the next number
// of the type, scale the sum of the magnitudes of the terms that make up the
// result (so that cancellation is forgiven and nothing else is), and c is
//
//	 8            elementwise kernels, softmax, gradients, SGD, Dequantize
//	16            sums and losses, however long: naive summation fails
//	 8 + k/8      matrix products over k terms: 11-bit products (TF32) fail
//	16            Normal; Uniform is exact, bit for bit; products of
//	              rows that are orthonormal
//
// Copies, conversions, hashes and what Quantize writes are exact. A kernel that is run twice gives the same
// bits twice. Operands lie at aligned addresses and one element beside them,
// between guards that must stay as they are.
package devicetest
