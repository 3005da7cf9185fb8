//go:build !linux

package poll

import "time"

// pause sleeps for about d.
func pause(d time.Duration) { time.Sleep(d) }
