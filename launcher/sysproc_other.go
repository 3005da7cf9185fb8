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

// ownExecutable is this program, or "" if the system cannot tell.
func ownExecutable() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}
