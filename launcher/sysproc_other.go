//go:build !linux

package launcher

import (
	"os"
	"syscall"
)

// workerSysProcAttr makes a worker the leader of a process group.
func workerSysProcAttr(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}

// reaperSysProcAttr gives a reaper a process group of its own, which a terminal does
// not signal, in the agent's session, which the workers share.
func reaperSysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// ownExecutable is this program, or "" if the system cannot tell.
func ownExecutable() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}
