package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
)

// processes returns the processes of the test's jobs, without zombies. It reads /proc with code of the test, so that it
// does not share a mistake with the code under test.
func processes(t *testing.T) (pids []int) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err == nil && slices.Contains(strings.Split(string(environ), "\x00"), markVar+"="+t.Name()) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// expectNothingLeft waits until no process of the test's jobs is left, and no file in the given temporary folders.
func expectNothingLeft(t *testing.T, temps ...string) {
	t.Helper()
	left := func() (all []string) {
		for _, pid := range processes(t) {
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			all = append(all, fmt.Sprintf("%d %q", pid, cmdline))
		}
		for _, temp := range temps {
			files, err := filepath.Glob(temp + "/*")
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, files...)
		}
		return all
	}
	for deadline := time.Now().Add(testkit.Soon); len(left()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("left over: %v", left())
		}
	}
}

// reaperOf returns the reaper of a golaunch, which is its only child.
func reaperOf(t *testing.T, p *testkit.Process) int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	children := ""
	for _, name := range lists {
		list, _ := os.ReadFile(name)
		children += string(list)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(children))
	if err != nil {
		t.Fatalf("golaunch's children are %q, want its reaper alone", children)
	}
	return pid
}

func kill(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		t.Fatal(err)
	}
}

// The workers get the signal, and golaunch's exit code names it.
func TestSignals(t *testing.T) {
	// nohup starts this test with SIGHUP ignored, and golaunch would inherit that and ignore the signal too. A signal
	// that this process handles has its default action in a child.
	handled := make(chan os.Signal, 4)
	signal.Notify(handled, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(handled)
	for sig, flag := range map[syscall.Signal]string{
		syscall.SIGTERM: "--role=x", syscall.SIGINT: "--role=x", syscall.SIGHUP: "--role=x", syscall.SIGQUIT: "--role=x", syscall.SIGUSR1: "--signals-to-handle=SIGUSR1",
	} {
		// bash may lose a SIGINT that arrives while it waits for a command in the foreground
		p := start(t, golaunch(t, nil, flag, "--nproc-per-node=2", "bash", "-c",
			`trap "echo caught; exit 0" TERM INT HUP QUIT USR1; echo ready; while :; do sleep 0.01 & wait $!; done`), "ready", 2)
		p.Signal(sig)
		if code, want := p.Wait(), 128+int(sig); code != want {
			t.Errorf("%v: exit code %d, want %d", sig, code, want)
		}
		p.Expect("caught", 2)
	}
}

// If a whole job is suspended while its workers stop, the suspension does not count as their time.
func TestSuspensionIsNotTheWorkersTime(t *testing.T) {
	testkit.Long(t)
	p := start(t, golaunch(t, nil, "--nproc-per-node=2", "--shutdown-timeout=3", "bash", "-c",
		`trap "echo stopping; for i in {1..5}; do sleep 0.1; done; echo saved; exit 0" TERM; echo ready; while :; do sleep 0.01; done`), "ready", 2)
	p.Signal(syscall.SIGTERM)
	p.Await("stopping", 2)
	all := processes(t)
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		for _, pid := range all {
			_ = syscall.Kill(pid, sig) // a sleep may have ended
		}
		if sig == syscall.SIGSTOP {
			time.Sleep(4 * time.Second)
		}
	}
	if code := p.Wait(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
	p.Expect("saved", 2)
}

// If SIGHUP is ignored, as under nohup, a job ignores it too, even if no other signal is to be handled.
func TestIgnoredSignal(t *testing.T) {
	for handled, want := range map[string]int{"SIGHUP,SIGTERM": 143, "SIGHUP": 0} {
		end := filepath.Join(t.TempDir(), "end")
		cmd := golaunch(t, nil, "--signals-to-handle", handled, "bash", "-c", `echo ready; until [ -e `+end+` ]; do sleep 0.01; done`)
		nohup := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `trap "" HUP; exec "$0" "$@"`}, cmd.Args...)...)
		nohup.Env = cmd.Env
		p := start(t, nohup, "ready", 1)
		p.Signal(syscall.SIGHUP)
		if want == 143 {
			p.Signal(syscall.SIGTERM)
		} else if err := os.WriteFile(end, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if code := p.Wait(); code != want {
			t.Errorf("handling %s: exit code %d, want %d", handled, code, want)
		}
	}
}

// The job goes on when the reader of its output has ended. A broken pipe of a worker's own still ends the worker.
func TestReaderThatEnds(t *testing.T) {
	dir := t.TempDir()
	cmd := golaunch(t, nil, "bash", "-c", `echo ready; until [ -e `+dir+`/ended ]; do sleep 0.01; done
		echo more; yes | head -1; [ ${PIPESTATUS[0]} = 141 ] && echo >`+dir+`/saved`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "[default0]: ready\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	out.Close()
	if err := os.WriteFile(dir+"/ended", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/saved"); err != nil {
		t.Error(err)
	}
}

// fullPipe returns an output that nobody reads.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	w, fill := testkit.UnreadPipe(t)
	fill()
	return w
}

// A job whose output nobody reads ends as any other does: after a signal, however patient the user is, when a rank fails, and
// by itself. Nothing is left.
func TestStuckConsole(t *testing.T) {
	const loud = "yes | head -c 3000000; " // more than golaunch keeps
	for name, test := range map[string]struct {
		script string
		limit  string // the shutdown timeout
		isLong bool   // golaunch waits for the console
		code   int
	}{
		"an impatient user":   {`trap "exit 3" TERM; echo >$RANK; sleep 1000 & wait`, "100", false, 143},
		"a signal":            {loud + `trap "" TERM; echo >$RANK; yes`, "0.1", true, 143},
		"a rank fails":        {loud + `[ $RANK = 0 ] || exit 7; sleep 1000`, "1", true, 7},
		"all ranks end":       {loud, "1", true, 0},
		"a rank fails, twice": {loud + `[ $RANK = 0 ] || exit 7; sleep 1000`, "1", true, 7},
		"a rank of a host":    {loud + `[ $RANK = 0 ] || exit 7; sleep 1000`, "1", true, 7},
	} {
		if test.isLong && !testkit.IsLong() {
			continue
		}
		stuck := fullPipe(t)
		args := []string{"--nproc-per-node=2", "--shutdown-timeout", test.limit}
		if strings.HasSuffix(name, "twice") {
			args = append(args, "--max-restarts=1")
		}
		if strings.HasSuffix(name, "host") {
			args = append(args, "--hosts=a", "--ssh="+localShell(t), "--master-addr=127.0.0.1")
		}
		cmd := golaunch(t, nil, append(args, "bash", "-c", test.script)...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), stuck, stuck
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			_ = cmd.Wait() // the exit code is checked
			close(ended)
		}()
		deadline, signals := time.After(testkit.Soon), 0
		for running := true; running; {
			select {
			case <-ended:
				running = false
			case <-deadline:
				t.Errorf("%s: golaunch does not end", name)
				_ = cmd.Process.Kill()
				<-ended
				running = false
			case <-time.After(10 * time.Millisecond):
				if ready, _ := filepath.Glob(cmd.Dir + "/[01]"); len(ready) == 2 && (signals == 0 || !test.isLong) {
					_ = cmd.Process.Signal(syscall.SIGTERM)
					signals++
				}
			}
		}
		if code := cmd.ProcessState.ExitCode(); code != test.code {
			t.Errorf("%s: exit code %d, want %d", name, code, test.code)
		}
	}
	expectNothingLeft(t)
}

// If nobody reads stdout, stderr still says which rank failed, and that lines are lost.
func TestStuckStdout(t *testing.T) {
	testkit.Long(t)
	var stderr strings.Builder
	cmd := golaunch(t, nil, "--nproc-per-node=2", "--shutdown-timeout=1", "bash", "-c", `yes | head -c 3000000; [ $RANK = 0 ] || exit 7; sleep 1000`)
	cmd.Stdout, cmd.Stderr = fullPipe(t), &stderr
	_ = cmd.Run() // the exit code is checked
	if code := cmd.ProcessState.ExitCode(); code != 7 || !strings.Contains(stderr.String(), "bash FAILED") || !strings.HasSuffix(stderr.String(), " lines are not shown: nobody read stdout\n") {
		t.Errorf("exit code %d, stderr:\n%s", code, &stderr)
	}
}

// Output that is lost on a full disk is an error, except of a job that has another one.
func TestFullDisk(t *testing.T) {
	testkit.Need(t, testkit.Linux)
	for line, want := range map[string]int{"--help": 1, "--version": 1, "echo lost": 1, "true": 0, "ls / /none/such": 2} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		var stderr strings.Builder
		cmd := golaunch(t, nil, strings.Fields(line)...)
		cmd.Stdout, cmd.Stderr = full, &stderr
		_ = cmd.Run() // the exit code is checked
		full.Close()
		if code := cmd.ProcessState.ExitCode(); code != want || strings.Contains(stderr.String(), ": no space left on device\n") != (want != 0) {
			t.Errorf("golaunch %s: exit code %d, want %d; stderr:\n%s", line, code, want, &stderr)
		}
	}
}

// The same holds for the files of workers.
func TestFullDiskOfLogs(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Root, testkit.Command("unshare"))
	dir := t.TempDir()
	cmd := golaunch(t, nil, "--redirects=1", "--log-dir="+dir, "seq", "100000")
	small := exec.CommandContext(t.Context(), "unshare", append([]string{"-m", "bash", "-c", `mount -t tmpfs -o size=64k none ` + dir + `; exec "$0" "$@"`}, cmd.Args...)...)
	small.Env = cmd.Env
	if got := testkit.Run(t, small); got.Code != 1 || !strings.Contains(got.Stderr, "stdout.log: no space left on device\n") {
		t.Errorf("got %+v", got)
	}
}

// A limit of the address space that Go programs do not run under is an error that names it.
func TestSmallAddressSpace(t *testing.T) {
	testkit.Need(t, testkit.Linux)
	cmd := golaunch(t, nil, "true")
	limited := exec.CommandContext(t.Context(), "bash", append([]string{"-c", `ulimit -v 1800000; exec "$0" "$@"`}, cmd.Args...)...)
	limited.Env = cmd.Env
	if got := testkit.Run(t, limited); got.Code != 1 || !strings.Contains(got.Stderr, "may reserve 1757 MiB of address space") {
		t.Errorf("got %+v", got)
	}
}

// If the parent of the workers is killed, golaunch says so, and leaves nothing.
func TestKilledReaper(t *testing.T) {
	temp := t.TempDir()
	p := start(t, golaunch(t, []string{"TMPDIR=" + temp}, "--nproc-per-node=2", "--max-restarts=3", "bash", "-c",
		`setsid sleep 1000 & echo ready; wait`), "ready", 2)
	reaper := reaperOf(t, p)
	kill(t, reaper, syscall.SIGKILL)
	want := fmt.Sprintf("golaunch: the reaper (pid %d), the parent of the workers, was killed by SIGKILL\n", reaper)
	if code := p.Wait(); code != 1 || p.Stderr() != want {
		t.Errorf("exit code %d, stderr %q, want 1 and %q", code, p.Stderr(), want)
	}
	expectNothingLeft(t, temp)
}

// If golaunch and its reaper are killed at the same moment, at least the workers die with them.
func TestKilledWithReaper(t *testing.T) {
	p := start(t, golaunch(t, []string{"TMPDIR=" + t.TempDir()}, "--nproc-per-node=2", "bash", "-c", `echo ready; exec sleep 1000`), "ready", 2)
	reaper := reaperOf(t, p)
	p.Signal(syscall.SIGSTOP)
	kill(t, reaper, syscall.SIGKILL)
	p.Signal(syscall.SIGKILL)
	expectNothingLeft(t)
}

// At whatever moment of its start golaunch is killed, no process and no folder is left.
func TestKilledAtStart(t *testing.T) {
	testkit.Long(t)
	var temps []string
	for i := range 60 {
		temps = append(temps, t.TempDir())
		cmd := golaunch(t, []string{"TMPDIR=" + temps[i]}, "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 300 * time.Microsecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
	}
	expectNothingLeft(t, temps...)
}
