//go:build cgo

package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/netns"
)

// clockVar makes the test binary run the command of its arguments with another clock: "30s" is ahead.
const clockVar = "GODDP_TEST_CLOCK"

// runWithClock runs a command, traces it, and adds a duration to each answer of its kernel about the time of day. The
// command gets no vDSO, which would answer without the kernel. It returns the command's exit code.
func runWithClock(ahead time.Duration, args []string) (code int, err error) {
	runtime.LockOSThread() // a tracer is a thread
	os.Unsetenv(clockVar)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	main := cmd.Process.Pid
	var status unix.WaitStatus
	if _, err := unix.Wait4(main, &status, unix.WALL, nil); err != nil { // it stops when the program is loaded
		return 0, err
	}
	if err := hideVDSO(main); err != nil {
		return 0, err
	}
	if err := unix.PtraceSetOptions(main, unix.PTRACE_O_EXITKILL|unix.PTRACE_O_TRACECLONE|unix.PTRACE_O_TRACESYSGOOD); err != nil {
		return 0, err
	}
	if err := unix.PtraceSyscall(main, 0); err != nil {
		return 0, err
	}
	inCall := map[int]bool{} // by thread
	for {
		thread, err := unix.Wait4(-1, &status, unix.WALL, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case status.Exited() && thread == main:
			return status.ExitStatus(), nil
		case status.Signaled() && thread == main:
			return 0, fmt.Errorf("the command ended by %v", status.Signal())
		case !status.Stopped():
			continue
		}
		signal := int(status.StopSignal())
		switch signal {
		case int(unix.SIGTRAP) | 0x80:
			if inCall[thread] = !inCall[thread]; !inCall[thread] {
				if err := addToClock(thread, ahead); err != nil {
					return 0, err
				}
			}
			signal = 0
		case int(unix.SIGTRAP), int(unix.SIGSTOP): // a thread begins
			signal = 0
		}
		if err := unix.PtraceSyscall(thread, signal); err != nil && err != unix.ESRCH {
			return 0, err
		}
	}
}

// addToClock changes the answer if the call that a thread has just made is clock_gettime of the time of day.
func addToClock(thread int, ahead time.Duration) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(thread, &r); err != nil {
		return nil // the thread has been killed
	}
	if r.Orig_rax != unix.SYS_CLOCK_GETTIME || r.Rdi != unix.CLOCK_REALTIME || r.Rax != 0 {
		return nil
	}
	seconds := make([]byte, 8)
	if _, err := unix.PtracePeekData(thread, uintptr(r.Rsi), seconds); err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(seconds, binary.LittleEndian.Uint64(seconds)+uint64(ahead/time.Second))
	_, err := unix.PtracePokeData(thread, uintptr(r.Rsi), seconds)
	return err
}

// hideVDSO takes the vDSO's address out of what the kernel has put onto the stack of a new program: argc, argv, the
// environment, and the auxiliary vector.
func hideVDSO(pid int) error {
	const vdso, ignore = 33, 1 // AT_SYSINFO_EHDR, AT_IGNORE
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &r); err != nil {
		return err
	}
	value := make([]byte, 8)
	next := func() (v uint64, err error) {
		_, err = unix.PtracePeekData(pid, uintptr(r.Rsp), value)
		r.Rsp += 8
		return binary.LittleEndian.Uint64(value), err
	}
	if _, err := next(); err != nil {
		return err
	}
	for range 2 { // argv and the environment end with 0
		for {
			if v, err := next(); err != nil {
				return err
			} else if v == 0 {
				break
			}
		}
	}
	for {
		kind, err := next()
		if err != nil || kind == 0 {
			return err
		}
		if kind == vdso {
			binary.LittleEndian.PutUint64(value, ignore)
			_, err := unix.PtracePokeData(pid, uintptr(r.Rsp-8), value)
			return err
		}
		if _, err := next(); err != nil {
			return err
		}
	}
}

// clockMain is the main function of a process that runs another with another clock.
func clockMain() {
	text := os.Getenv(clockVar)
	if text == "" {
		return
	}
	ahead, err := time.ParseDuration(text)
	code := 0
	if err == nil {
		code, err = runWithClock(ahead, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// Of two hosts, the one whose clock is 30 s ahead is named.
func TestDoctorFindsWrongClock(t *testing.T) {
	needsOpenBLAS(t)
	code, r := examineHosts(t, netns.New(t, 2, 1), nil, []string{"env", clockVar + "=30s", os.Args[0]})
	r.expect(t, "slow", "clocks", "the clock of host1 differs from that of host0 by ")
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
}
