//go:build !(cgo && unix)

package cpu

import "errors"

// openBLAS fails: opening a shared library takes cgo.
func openBLAS(int) (blas, error) { return nil, errors.New("built without cgo") }
