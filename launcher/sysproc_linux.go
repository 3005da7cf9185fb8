package launcher

import "syscall"

// workerSysProcAttr makes a worker the leader of a process group, which dies
// with the thread that started it.
func workerSysProcAttr(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: pidfd}
}

// ownExecutable is this program, also if its file has been replaced since.
func ownExecutable() string { return "/proc/self/exe" }
