//go:build !linux

package device

import "time"

// pause sleeps for about d.
func pause(d time.Duration) { time.Sleep(d) }
