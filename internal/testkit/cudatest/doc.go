// Package cudatest has a kernel for tests on GPUs that runs for a given time. It needs Linux, cgo
// and a GPU.
package cudatest
