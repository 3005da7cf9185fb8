//go:build !(cgo && linux)

package cuda

import (
	"errors"

	"github.com/goddp/goddp/device"
)

var errNoCUDA = errors.New("cuda: this program was built without CUDA, which needs Linux and cgo")

func count() (int, error)                      { return 0, errNoCUDA }
func open(int, Options) (device.Device, error) { return nil, errNoCUDA }
