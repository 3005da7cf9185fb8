//go:build !linux

package flight

import (
	"errors"
	"os"
)

// errNoShared: only Linux has memory without a name that outlives a process.
var errNoShared = errors.New("flight: records outlive their processes on Linux only")

// Shared is memory for the recorder of another process. It exists on Linux.
type Shared struct{}

// NewShared fails.
func NewShared(int) (*Shared, error) { return nil, errNoShared }

// File is nil.
func (*Shared) File() *os.File { return nil }

// Read fails.
func (*Shared) Read() (*Dump, error) { return nil, errNoShared }

// Close does nothing.
func (*Shared) Close() error { return nil }

// Inherited is nil: no launcher makes memory here.
func Inherited() ([]byte, error) { return nil, nil }

// Find fails.
func Find(string) ([]*Dump, error) { return nil, errNoShared }

func unmap([]byte) {}
