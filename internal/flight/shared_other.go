//go:build !linux

package flight

import (
	"errors"
	"fmt"
	"os"
)

// errNoShared says that only Linux has unnamed memory that outlives a process.
var errNoShared = fmt.Errorf("flight: records outlive their processes on Linux only: %w", errors.ErrUnsupported)

// Shared is memory for the recorder of another process. It exists on Linux only.
type Shared struct{}

// NewShared fails with [errors.ErrUnsupported].
func NewShared(int) (*Shared, error) { return nil, errNoShared }

// File returns nil.
func (*Shared) File() *os.File { return nil }

// Read fails.
func (*Shared) Read(int) (*Dump, error) { return nil, errNoShared }

// Close does nothing.
func (*Shared) Close() error { return nil }

// Inherited returns nil, because no launcher allocates memory on this system.
func Inherited() ([]byte, error) { return nil, nil }

// Find fails with [errors.ErrUnsupported].
func Find(string) ([]*Dump, error) { return nil, errNoShared }

func unmap([]byte) {}
