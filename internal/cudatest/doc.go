// Package cudatest is what tests need of a GPU beside a device's operations: a
// kernel that takes its time. It needs Linux, cgo and a GPU.
package cudatest
