//go:build !linux

package launcher

import (
	"os"
	"syscall"
)

func workerSysProcAttr(pidfd *int) *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

// reaperSysProcAttr puts the reaper into its own process group, so that the terminal
// does not signal it. The reaper and the workers stay in the agent's session.
func reaperSysProcAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// ownExecutable returns the path of this executable, or "" if the system does not provide it.
func ownExecutable() string {
	path, err := os.Executable()
	if err != nil {
		return ""
	}
	return path
}
