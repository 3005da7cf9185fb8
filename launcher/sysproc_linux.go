package launcher

import "syscall"

// workerSysProcAttr makes the kernel kill a worker when the thread that started it ends.
func workerSysProcAttr(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, PidFD: pidfd}
}

// reaperSysProcAttr puts the reaper into its own process group, so that the terminal
// does not signal it. The reaper and the workers stay in the agent's session. If the agent
// dies, SIGCONT wakes a suspended reaper.
func reaperSysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGCONT}
}

// ownExecutable returns a path of this program that stays valid if the file is replaced.
func ownExecutable() string { return "/proc/self/exe" }
