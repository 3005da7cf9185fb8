//go:build !linux

package flight

import (
	"errors"
	"fmt"
	"os"
)

// errNoShared: only Linux has memory without a name that outlives a process.
var errNoShared = fmt.Errorf("flight: records outlive their processes on Linux only: %w", errors.ErrUnsupported)

// Shared is memory for the recorder of another process. It exists on Linux.
type Shared struct{}

// NewShared fails with [errors.ErrUnsupported].
func NewShared(int) (*Shared, error) { return nil, errNoShared }

// File is nil.
func (*Shared) File() *os.File { return nil }

// Read fails.
func (*Shared) Read() (*Dump, error) { return nil, errNoShared }

// Close does nothing.
func (*Shared) Close() error { return nil }

// Inherited is nil: no launcher makes memory here.
func Inherited() ([]byte, error) { return nil, nil }

// Find fails with [errors.ErrUnsupported].
func Find(string) ([]*Dump, error) { return nil, errNoShared }

func unmap([]byte) {}
