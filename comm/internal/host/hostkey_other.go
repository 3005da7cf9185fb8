//go:build !linux && !darwin

package host

import "errors"

// hostKey returns an error, because this system provides no unique name of the host.
func hostKey() (string, error) { return "", errors.ErrUnsupported }
