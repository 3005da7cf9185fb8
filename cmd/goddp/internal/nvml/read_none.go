//go:build !(cgo && linux)

package nvml

import "errors"

// Read fails, because this program was built without CUDA.
func Read() (*Host, error) {
	return nil, errors.New("nvml: this program was built without CUDA, which needs Linux and cgo")
}
