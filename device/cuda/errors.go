package cuda

import (
	"errors"
	"fmt"
)

// ErrClosed is returned by calls on a closed device.
var ErrClosed = errors.New("the device is closed")

// Error reports a failed call to one of CUDA's libraries.
type Error struct {
	Device string // "cuda:0"; empty if no device was open
	Call   string // the function's name
	Code   int    // the code that it returned
	Name   string // the code's name: "CUDA_ERROR_INVALID_VALUE"
	Text   string // the library's description of the code; may be empty
}

func (e *Error) Error() string {
	device := e.Device
	if device == "" {
		device = "cuda"
	}
	s := fmt.Sprintf("%s: %s: %s (%d)", device, e.Call, e.Name, e.Code)
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// LostError reports an error from which CUDA cannot recover, such as an illegal address or a
// hardware fault. Every later call on the device returns the same LostError without calling CUDA.
// Because kernels run asynchronously, Cause names the call that returned the error, not the kernel
// that failed.
type LostError struct {
	Device string
	Cause  *Error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%s is lost to this process, which must exit to use it again; first reported by %v", e.Device, e.Cause)
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Cause }

// lasting reports whether CUDA returns the code for every later call too, because the context is
// unusable.
func lasting(code int) bool {
	switch code {
	case 4, // deinitialized
		46,            // device unavailable
		201,           // invalid context
		214, 220, 226, // uncorrectable memory or link error, contained error
		700, 702, 709, 710, // illegal address, launch timeout, context destroyed, assertion
		714, 715, 716, 717, 718, 719, // stack, instruction, alignment, address space, program counter, launch failure
		721, 999: // tensor memory leak, unknown
		return true
	}
	return false
}
