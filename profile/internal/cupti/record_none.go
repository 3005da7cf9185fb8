//go:build !(cgo && linux)

package cupti

import "errors"

// Recording collects what one GPU runs.
type Recording struct{}

// Start fails, because this program was built without CUDA.
func Start(int) (*Recording, error) {
	return nil, errors.New("cupti: this program was built without CUDA, which needs Linux and cgo")
}

// Take returns nothing.
func (*Recording) Take() ([]Activity, error) { return nil, nil }

// Stop returns nothing.
func (*Recording) Stop() ([]Activity, error) { return nil, nil }
