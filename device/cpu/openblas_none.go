//go:build !(cgo && unix)

package cpu

import "errors"

// openBLAS fails, because opening a shared library needs cgo.
func openBLAS() (blas, error) { return nil, errors.New("built without cgo") }
