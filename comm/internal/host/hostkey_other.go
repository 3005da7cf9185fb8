//go:build !linux && !darwin

package host

import "errors"

// hostKey returns an error: no name of this host is known that no other host has.
func hostKey() (string, error) { return "", errors.ErrUnsupported }
