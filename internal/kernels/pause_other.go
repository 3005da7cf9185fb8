//go:build !linux

package kernels

import "time"

// pause sleeps for about d.
func pause(d time.Duration) { time.Sleep(d) }
