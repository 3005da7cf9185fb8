package main

import (
	"fmt"
	"runtime"
	"syscall"
)

// asUser calls f on a thread that is of another user: so are the sockets that it makes.
func asUser(uid int, f func()) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		// The system call itself, for it concerns this thread alone.
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- fmt.Errorf("becoming user %d: %w", uid, errno)
			return
		}
		f()
		done <- nil
	}()
	return <-done
}
