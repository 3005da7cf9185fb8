package main

import (
	"fmt"
	"runtime"
	"syscall"
)

// asUser calls f on a thread of another user. The sockets that f makes belong to that user.
func asUser(uid int, f func()) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with the goroutine
		// The raw system call changes this thread alone; syscall.Setresuid changes all threads.
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			done <- fmt.Errorf("becoming user %d: %w", uid, errno)
			return
		}
		f()
		done <- nil
	}()
	return <-done
}
