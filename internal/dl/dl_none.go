//go:build !(cgo && unix)

package dl

import (
	"errors"
	"unsafe"
)

var errNoCgo = errors.New("this program was built without cgo")

func open(string) (unsafe.Pointer, error)                   { return nil, errNoCgo }
func lookup(unsafe.Pointer, string) (unsafe.Pointer, error) { return nil, errNoCgo }
func closeHandle(unsafe.Pointer)                            {}
