package daemon

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	if isDaemon() {
		runtime.LockOSThread() // play must run on the main thread
	}
}

// play acts as a daemon of a kind.
func play(kind, file string) {
	f, err := os.Create(file + ".new")
	check(err)
	check(syscall.Flock(int(f.Fd()), syscall.LOCK_EX))
	ready := func() { check(os.Rename(f.Name(), file)) }
	switch kind {
	case Mainless:
		go func() {
			for !mainThreadEnded() {
				time.Sleep(time.Millisecond)
			}
			ready()
			time.Sleep(Lifetime)
			os.Exit(0)
		}()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // ends only this thread
	case Overwritten:
		overwriteEnvironment()
	case Undumpable:
		check(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	case Deaf:
		signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	case Forking:
		ready()
		debug.SetGCPercent(-1)
		forkAndExit()
	case Suspended:
		ready()
		check(syscall.Kill(os.Getpid(), syscall.SIGSTOP))
		time.Sleep(Lifetime)
	}
	ready()
	time.Sleep(Lifetime)
	runtime.KeepAlive(f)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "daemon:", err)
		os.Exit(1)
	}
}

func mainThreadEnded() bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", os.Getpid()))
	check(err)
	return strings.Contains(string(status), "State:\tZ")
}

// overwriteEnvironment clears the memory that /proc/PID/environ shows.
func overwriteEnvironment() {
	stat, err := os.ReadFile("/proc/self/stat")
	check(err)
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	const envStart = 50 - 3 // these begin with the third field
	start, err := strconv.ParseInt(fields[envStart], 10, 64)
	check(err)
	end, err := strconv.ParseInt(fields[envStart+1], 10, 64)
	check(err)
	memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	check(err)
	_, err = memory.WriteAt(make([]byte, end-start), start)
	check(err)
}

// forkAndExit forks, and exits after 1, 2 or 3 ms. Its children do the same, until Lifetime
// is over. A forked process has only one thread, so its Go runtime does not work, and
// forkAndExit must use system calls alone.
//
//go:norace
func forkAndExit() {
	for generation := int64(0); generation < int64(Lifetime/(2*time.Millisecond)); generation++ {
		pause := syscall.Timespec{Nsec: (1 + generation%3) * 1e6}
		syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
		pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if pid != 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
}
