// Package operand validates a kernel's operands, and computes the iteration spaces of broadcast
// operands. Every implementation of device.Kernels calls it first.
//
// Mismatched operands are a programming error: the check panics with a *device.ShapeError or a
// *device.DTypeError.
package operand
