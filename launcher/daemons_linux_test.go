package launcher

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/testkit"
)

// daemons are processes that a worker may leave behind, as shell commands of the worker.
// Each makes the file $R once it has the property of its name. "$T" be-a-daemon starts a
// daemon of package daemon.
var daemons = map[string]string{
	"double fork and setsid":                       `(setsid bash -c 'echo >$R; exec sleep 1000' >/dev/null 2>&1 &)`,
	"main thread ended, in the worker's own group": `("$T" be-a-daemon mainless $R >/dev/null 2>&1 &)`,
	"main thread ended, setsid":                    `(setsid "$T" be-a-daemon mainless $R >/dev/null 2>&1 &)`,
	"environment overwritten":                      `(setsid "$T" be-a-daemon overwritten $R >/dev/null 2>&1 &)`,
	"env -i setsid":                                `(env -i R=$R setsid bash -c 'echo >$R; exec env -i sleep 1000' >/dev/null 2>&1 &)`,
	"not dumpable":                                 `(setsid "$T" be-a-daemon undumpable $R >/dev/null 2>&1 &)`,
	"forks and exits every 1 to 3 ms":              `(setsid "$T" be-a-daemon forking $R >/dev/null 2>&1 &)`,
	"deaf to SIGTERM, SIGHUP and SIGINT":           `(setsid bash -c 'trap "" TERM HUP INT; echo >$R; while :; do sleep 0.1; done' >/dev/null 2>&1 &)`,
	"suspended":                                    `(setsid bash -c 'echo >$R; kill -STOP $$' >/dev/null 2>&1 &)`,
	"process groups of its own":                    `(bash -mc 'sleep 1000 & sleep 1000 & echo >$R; wait' >/dev/null 2>&1 &)`,
	"holds the worker's stdout":                    `(setsid bash -c 'echo >$R; exec sleep 1000' &)`,
	"no descriptors":                               `(setsid bash -c 'echo >$R; exec sleep 1000 0<&- 1>&- 2>&-' &)`,
}

// ends are the ways in which a job with a daemon ends: the command of its worker once the
// daemon is up, and golaunch's exit code, -1 for death by a signal.
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

// No process of a job is left, whatever its workers started and however the job ends.
// Each case runs below a judge, a subreaper, which no process can escape.
func TestDaemons(t *testing.T) {
	for daemon, script := range daemons {
		for end := range ends {
			if daemon != "double fork and setsid" && !testkit.IsLong() {
				continue
			}
			t.Run(daemon+"/"+end, func(t *testing.T) {
				t.Parallel()
				temp := t.TempDir()
				judge := testkit.Self(t, "judge", end, script)
				judge.Env = append(judge.Env, "TMPDIR="+temp)
				if code := testkit.Start(t, judge).Wait(); code != 0 {
					t.Errorf("exit code %d", code)
				}
				if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
					t.Errorf("temporary files are left: %v, %v", left, err)
				}
			})
		}
	}
}

func init() { testJudge = judge }

// judge runs a job, ends it, and exits with code 1 if a process of the job is left.
func judge() {
	end, daemon := os.Args[1], os.Args[2]
	check(unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	dir, err := os.MkdirTemp("", "judge")
	check(err)
	ready := filepath.Join(dir, "ready")
	worker := fmt.Sprintf("export R=%s T=%s; %s; until [ -e $R ]; do sleep 0.01; done; echo up; %s",
		ready, os.Args[0], daemon, ends[end].worker)
	golaunch := exec.Command(os.Args[0], worker)
	golaunch.Env = append(os.Environ(), "GODDP_TEST_PROGRAM=dedicated")
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

// childrenOf returns the children of a process.
func childrenOf(pid int) string {
	var all strings.Builder
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, name := range lists {
		list, _ := os.ReadFile(name)
		all.Write(list)
	}
	return all.String()
}

// describeAll describes processes for an error message.
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
