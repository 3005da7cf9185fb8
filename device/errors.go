package device

import (
	"errors"
	"fmt"
)

// ErrOutOfMemory matches every [*OutOfMemoryError].
var ErrOutOfMemory = errors.New("out of device memory")

// ErrSkipped matches the error of a step that the device skipped: a flag in the device's memory
// was set, so the update wrote nothing.
var ErrSkipped = errors.New("skipped on the device")

// OutOfMemoryError reports a failed allocation. Sizes are in bytes. Free is -1 if the device does
// not report it.
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

// sizeText formats a number of bytes for people.
func sizeText(bytes int64) string {
	switch {
	case bytes < 1<<20:
		return fmt.Sprintf("%d bytes", bytes)
	case bytes < 1<<30:
		return fmt.Sprintf("%.2f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%.2f GiB", float64(bytes)/(1<<30))
}

// Is makes errors.Is(err, ErrOutOfMemory) true.
func (e *OutOfMemoryError) Is(target error) bool { return target == ErrOutOfMemory }

// ShapeError is the panic value for mismatched shapes of operands.
type ShapeError struct {
	Op        string
	A, B      Shape
	Want      string // the requirement on A, if it is not the shape B
	Layer     string // the layer's name in its model ("layer4.0.conv1"), if known
	Parameter string // the operand's parameter name ("layer4.0.conv1.weight"), if known
}

func (e *ShapeError) Error() string {
	text := layerPrefix(e.Layer) + fmt.Sprintf("%s: shapes %v and %v do not fit", e.Op, e.A, e.B)
	if e.Want != "" {
		text = layerPrefix(e.Layer) + fmt.Sprintf("%s: got shape %v, want %s", e.Op, e.A, e.Want)
	}
	if e.Parameter != "" {
		text += " (parameter " + e.Parameter + ")"
	}
	return text
}

// layerPrefix returns the prefix of an error message that names a layer. Layers of a sequence are
// numbered; a number gets the prefix "layer".
func layerPrefix(layer string) string {
	switch {
	case layer == "":
		return ""
	case layer[0] >= '0' && layer[0] <= '9':
		return "layer " + layer + ": "
	}
	return layer + ": "
}

// DTypeError is the panic value for mismatched element types of operands, or types that the device
// does not support.
type DTypeError struct {
	Op        string
	Got, Want DType
	Computes  []DType // the types that the device supports, if Got is not one of them
	Layer     string  // as in [ShapeError]
	Parameter string  // as in [ShapeError]
}

func (e *DTypeError) Error() string {
	text := layerPrefix(e.Layer) + fmt.Sprintf("%s: got %v, want %v", e.Op, e.Got, e.Want)
	if len(e.Computes) > 0 {
		text = layerPrefix(e.Layer) + fmt.Sprintf("%s: got %v, but the device computes only in %v", e.Op, e.Got, e.Computes)
	}
	if e.Parameter != "" {
		text += " (parameter " + e.Parameter + ")"
	}
	return text
}

// IndexError is the panic value for an index or label that is out of range.
type IndexError struct {
	Op    string
	At    int // the position of Index among the indices
	Index int64
	Limit int    // an index is at least 0 and less than Limit
	Label bool   // whether Index is the label of row At, and Limit the number of classes
	Layer string // as in [ShapeError]
}

func (e *IndexError) Error() string {
	if e.Label {
		return layerPrefix(e.Layer) + fmt.Sprintf("%s: label %d of row %d is not one of the %d classes, 0 to %d", e.Op, e.Index, e.At, e.Limit, e.Limit-1)
	}
	return layerPrefix(e.Layer) + fmt.Sprintf("%s: index %d at position %d is not within 0 to %d", e.Op, e.Index, e.At, e.Limit-1)
}
