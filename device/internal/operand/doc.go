// Package operand checks that a kernel's operands fit each other, and computes the iteration spaces
// of broadcast operands. Every implementation of device.Kernels calls it before it computes.
//
// Operands that do not fit are a programming error: the check panics with a *device.ShapeError or a
// *device.DTypeError.
package operand
