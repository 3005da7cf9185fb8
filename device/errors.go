package device

import (
	"errors"
	"fmt"
)

// ErrOutOfMemory matches every [*OutOfMemoryError].
var ErrOutOfMemory = errors.New("out of device memory")

// ErrSkipped matches the error behind flags that were raised on the device:
// the updates that read them (see [SGDStep]) have written nothing.
var ErrSkipped = errors.New("skipped on the device")

// OutOfMemoryError says that an allocation did not fit. Sizes are in bytes;
// Free is -1 where the device does not tell.
type OutOfMemoryError struct {
	Device             string
	Asked, InUse, Free int64
}

func (e *OutOfMemoryError) Error() string {
	if e.Free < 0 {
		return fmt.Sprintf("%s: %v: asked for %d bytes, %d in use", e.Device, ErrOutOfMemory, e.Asked, e.InUse)
	}
	return fmt.Sprintf("%s: %v: asked for %d bytes, %d in use, %d free", e.Device, ErrOutOfMemory, e.Asked, e.InUse, e.Free)
}

// Is makes errors.Is(err, ErrOutOfMemory) hold.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }
