// Package operand checks that a kernel's operands fit each other, and
// describes the iteration spaces that broadcasting makes: what every
// implementation of device.Kernels does before it computes.
//
// What does not fit is a programming error and panics with a
// *device.ShapeError or a *device.DTypeError.
package operand
