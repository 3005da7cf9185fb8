//go:build !(cgo && linux)

package nvml

import "errors"

var errNone = errors.New("nvml: this program was built without CUDA, which needs Linux and cgo")

// Read fails, because this program was built without CUDA.
func Read() (*Host, error) { return nil, errNone }

// A Monitor cannot be made, because this program was built without CUDA.
type Monitor struct{}

// Watch fails.
func Watch(string) (*Monitor, error) { return nil, errNone }

// Read fails.
func (*Monitor) Read() (State, error) { return State{}, errNone }

// Close does nothing.
func (*Monitor) Close() {}
