package launcher

import "syscall"

// workerSysProcAttr makes a worker the leader of a process group, which dies
// with the thread that started it.
func workerSysProcAttr(pidfd *int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, PidFD: pidfd}
}

// reaperSysProcAttr gives a reaper a process group of its own, which a terminal does
// not signal, in the agent's session, which the workers share. A reaper that is
// suspended when the agent dies is woken.
func reaperSysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGCONT}
}

// ownExecutable is this program, also if its file has been replaced since.
func ownExecutable() string { return "/proc/self/exe" }
