package cuda

import (
	"errors"
	"fmt"
)

// ErrClosed is what calls on a closed device return.
var ErrClosed = errors.New("the device is closed")

// Error is a call that one of CUDA's libraries refused.
type Error struct {
	Device string // "cuda:0"; empty where there is none yet
	Call   string // the library's function
	Code   int    // what it returned
	Name   string // the code's name: "CUDA_ERROR_INVALID_VALUE"
	Text   string // what the library says of it; may be empty
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

// LostError is an error that CUDA does not recover from: a kernel that read an
// address it must not, a fault of the hardware. The device keeps the first and
// every later call returns it, without calling CUDA. Since kernels run behind
// their calls, Cause names the call that noticed, not the one that failed.
type LostError struct {
	Device string
	Cause  *Error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("%s is lost to this process, which must end to use it again; first noticed by %v", e.Device, e.Cause)
}

// Unwrap gives the cause.
func (e *LostError) Unwrap() error { return e.Cause }

// lasting tells whether CUDA returns a code for every call after the first:
// the context is gone.
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
