package launcher

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// daemons are processes that a worker may leave behind, as shell commands of the worker.
// Each makes the file $R when it is what its name says. "$T" daemon is testDaemon.
var daemons = map[string]string{
	"double fork and setsid":                       `(setsid bash -c 'echo >$R; exec sleep 1000' >/dev/null 2>&1 &)`,
	"main thread ended, in the worker's own group": `("$T" daemon mainless $R >/dev/null 2>&1 &)`,
	"main thread ended, setsid":                    `(setsid "$T" daemon mainless $R >/dev/null 2>&1 &)`,
	"environment overwritten":                      `(setsid "$T" daemon overwritten $R >/dev/null 2>&1 &)`,
	"env -i setsid":                                `(env -i R=$R setsid bash -c 'echo >$R; exec env -i sleep 1000' >/dev/null 2>&1 &)`,
	"not dumpable":                                 `(setsid "$T" daemon undumpable $R >/dev/null 2>&1 &)`,
	"forks and exits every 1 to 3 ms":              `(setsid "$T" daemon forking $R >/dev/null 2>&1 &)`,
	"deaf to SIGTERM, SIGHUP and SIGINT":           `(setsid bash -c 'trap "" TERM HUP INT; echo >$R; while :; do sleep 0.1; done' >/dev/null 2>&1 &)`,
	"suspended":                                    `(setsid bash -c 'echo >$R; kill -STOP $$' >/dev/null 2>&1 &)`,
	"process groups of its own":                    `(bash -mc 'sleep 1000 & sleep 1000 & echo >$R; wait' >/dev/null 2>&1 &)`,
	"holds the worker's stdout":                    `(setsid bash -c 'echo >$R; exec sleep 1000' &)`,
	"no descriptors":                               `(setsid bash -c 'echo >$R; exec sleep 1000 0<&- 1>&- 2>&-' &)`,
}

// ends are how a job with a daemon ends: what its worker does when the daemon is up, and
// the exit code of golaunch, -1 for death by a signal.
var ends = map[string]struct {
	worker string
	code   int
}{
	"the job ends":            {"exit 0", 0},
	"the worker fails":        {"exit 3", 3},
	"golaunch gets SIGTERM":   {"exec sleep 1000", 143},
	"golaunch gets SIGKILL":   {"exec sleep 1000", -1},
	"the reaper gets SIGKILL": {"exec sleep 1000", 1},
}

// TestDaemons: of a job nothing is left, whatever its workers started and however it
// ends. A judge, from below which no process can escape, says so of each case.
func TestDaemons(t *testing.T) {
	for daemon, script := range daemons {
		for end := range ends {
			t.Run(daemon+"/"+end, func(t *testing.T) {
				t.Parallel()
				temp := t.TempDir()
				ctx, cancel := context.WithTimeout(t.Context(), 2*soon)
				defer cancel()
				judge := exec.CommandContext(ctx, os.Args[0], end, script)
				judge.Env = append(os.Environ(), testRoleVar+"=judge", "TMPDIR="+temp, "GORACE=atexit_sleep_ms=0")
				out, err := judge.CombinedOutput()
				if err != nil {
					t.Errorf("%v\n%s", err, out)
				}
				if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
					t.Errorf("temporary files are left: %v, %v", left, err)
				}
			})
		}
	}
}

// testJudge runs a job, ends it, and exits with 1 if anything of it is left.
func testJudge(end, daemon string) {
	check(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	dir, err := os.MkdirTemp("", "judge")
	check(err)
	ready := filepath.Join(dir, "ready")
	worker := fmt.Sprintf("export R=%s T=%s; %s; until [ -e $R ]; do sleep 0.01; done; echo up; %s",
		ready, os.Args[0], daemon, ends[end].worker)
	golaunch := exec.Command(os.Args[0], worker)
	golaunch.Env = append(os.Environ(), testRoleVar+"=dedicated")
	golaunch.Stderr = os.Stderr
	out, err := golaunch.StdoutPipe()
	check(err)
	check(golaunch.Start())
	for lines := bufio.NewScanner(out); lines.Scan() && !strings.HasSuffix(lines.Text(), "up"); {
	}
	switch end {
	case "golaunch gets SIGTERM":
		check(golaunch.Process.Signal(syscall.SIGTERM))
	case "golaunch gets SIGKILL":
		check(golaunch.Process.Kill())
	case "the reaper gets SIGKILL":
		reaper, err := strconv.Atoi(strings.TrimSpace(childrenOf(golaunch.Process.Pid)))
		check(err)
		check(syscall.Kill(reaper, syscall.SIGKILL))
	}
	_ = golaunch.Wait()
	wrong := false
	if code := golaunch.ProcessState.ExitCode(); code != ends[end].code {
		fmt.Fprintf(os.Stderr, "golaunch's exit code is %d, want %d\n", code, ends[end].code)
		wrong = true
	}
	deadline := time.Now()
	if end == "golaunch gets SIGKILL" {
		deadline = deadline.Add(soon) // the reaper has yet to act
	}
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.ECHILD {
			break
		}
		if pid == 0 && time.Now().After(deadline) {
			fmt.Fprintln(os.Stderr, "left are", describeAll(childrenOf(os.Getpid())))
			for i := 0; i < 1000; i++ {
				for _, pid := range strings.Fields(childrenOf(os.Getpid())) {
					n, _ := strconv.Atoi(pid)
					_ = syscall.Kill(n, syscall.SIGKILL)
				}
			}
			wrong = true
			break
		}
		if pid == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	check(os.RemoveAll(dir))
	if wrong {
		os.Exit(1)
	}
	os.Exit(0)
}

// childrenOf lists the children of a process.
func childrenOf(pid int) string {
	var all strings.Builder
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range lists {
		list, _ := os.ReadFile(name)
		all.Write(list)
	}
	return all.String()
}

// describeAll tells what processes are.
func describeAll(pids string) (all []string) {
	for _, pid := range strings.Fields(pids) {
		args, _ := os.ReadFile("/proc/" + pid + "/cmdline")
		status, _ := os.ReadFile("/proc/" + pid + "/status")
		_, state, _ := strings.Cut(string(status), "State:\t")
		state, _, _ = strings.Cut(state, "\n")
		all = append(all, fmt.Sprintf("%s %q %s", pid, args, state))
	}
	return all
}

func init() {
	isDaemon := len(os.Args) == 4 && os.Args[1] == "daemon"
	if isDaemon {
		runtime.LockOSThread() // testDaemon is to run on the main thread
	}
	linuxRole = func(role string) {
		if isDaemon {
			testDaemon(os.Args[2], os.Args[3])
		}
		if role == "judge" {
			testJudge(os.Args[1], os.Args[2])
		}
	}
}

// testDaemon is a process that hides. It makes the file ready when it does.
func testDaemon(kind, ready string) {
	makeReady := func() { check(os.WriteFile(ready, nil, 0o600)) }
	switch kind {
	case "mainless":
		go func() {
			for {
				status, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/status", os.Getpid()))
				check(err)
				if strings.Contains(string(status), "State:\tZ") {
					makeReady()
					select {}
				}
				time.Sleep(time.Millisecond)
			}
		}()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0) // of this thread
	case "overwritten":
		stat, err := os.ReadFile("/proc/self/stat")
		check(err)
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		const envStart = 50 - 3 // the fields begin with the third
		start, err := strconv.ParseInt(fields[envStart], 10, 64)
		check(err)
		end, err := strconv.ParseInt(fields[envStart+1], 10, 64)
		check(err)
		memory, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
		check(err)
		_, err = memory.WriteAt(make([]byte, end-start), start)
		check(err)
	case "undumpable":
		check(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	case "forking":
		debug.SetGCPercent(-1)
		makeReady()
		forkAndExit()
	}
	makeReady()
	time.Sleep(time.Hour)
}

// forkAndExit forks and exits after 1, 2 or 3 ms, and so do its children. A process
// that is forked has one thread, and no Go runtime that could do more than this.
//
//go:norace
func forkAndExit() {
	for generation := 0; ; generation++ {
		pause := syscall.Timespec{Nsec: int64(1+generation%3) * 1e6}
		syscall.RawSyscall(syscall.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&pause)), 0, 0)
		pid, _, _ := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if pid != 0 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
}
