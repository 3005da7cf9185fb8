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
	text := fmt.Sprintf("%s: %v: asked for %s, %s in use", e.Device, ErrOutOfMemory, sizeText(e.Asked), sizeText(e.InUse))
	if e.Free < 0 {
		return text
	}
	return text + ", " + sizeText(e.Free) + " free"
}

// sizeText is a number of bytes for people.
func sizeText(bytes int64) string {
	switch {
	case bytes < 1<<20:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1<<30:
		return fmt.Sprintf("%.2f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30))
}

// Is makes errors.Is(err, ErrOutOfMemory) hold.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }
