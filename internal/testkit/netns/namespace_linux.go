package netns

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace together with a host name. A goroutine that is locked to its thread
// lives in it. The namespace ends when the goroutine and all processes in it have ended.
type namespace struct {
	name  string
	calls chan func()
	ended chan struct{}
	path  string // of the network namespace, valid for other processes
	id    string // of the network namespace, as in /proc/PID/ns/net
}

// newNamespace makes a namespace. The caller must close it.
func newNamespace(name string) (*namespace, error) {
	ns := &namespace{name: name, calls: make(chan func()), ended: make(chan struct{})}
	made := make(chan error)
	go ns.run(made)
	if err := <-made; err != nil {
		return nil, err
	}
	return ns, nil
}

// run makes the namespace, and runs the calls in it.
func (ns *namespace) run(made chan<- error) {
	runtime.LockOSThread() // for ever: the thread ends with the goroutine
	if unix.Gettid() == os.Getpid() {
		// The main thread does not end. While it is locked, another goroutine runs on another thread.
		defer runtime.UnlockOSThread()
		started := make(chan error)
		go ns.run(started)
		made <- <-started
		return
	}
	defer close(ns.ended)
	if err := ns.enter(); err != nil {
		made <- err
		return
	}
	made <- nil
	for call := range ns.calls {
		call()
	}
}

// enter moves this thread into a new namespace.
func (ns *namespace) enter() error {
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWUTS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Sethostname([]byte(ns.name)); err != nil {
		return os.NewSyscallError("sethostname", err)
	}
	ns.path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	var err error
	ns.id, err = os.Readlink(ns.path)
	return err
}

func (ns *namespace) close() {
	close(ns.calls)
	<-ns.ended
}

// Do runs f on a thread of the host. Sockets that f makes belong to the host, if f makes them in this
// goroutine: so addresses must be numbers, not names. Calls of Do wait for each other.
func (ns *namespace) Do(f func()) {
	done := make(chan struct{})
	ns.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// Start starts a command on the host. The process is killed if it lives longer than the host.
func (ns *namespace) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // sent when the host's thread ends
	var err error
	ns.Do(func() { err = cmd.Start() })
	return err
}

// execute runs a command of the network's own, with a script as its input.
func (ns *namespace) execute(script, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Stdin = strings.NewReader(script)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := ns.Start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return fmt.Errorf("%s: %s: %w: %s\n%s", ns.name, strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out.Bytes()), script)
	}
	return nil
}

// Process is a process on a host.
type Process struct {
	PID  int
	Args []string
}

func (p Process) String() string { return fmt.Sprintf("pid %d (%s)", p.PID, strings.Join(p.Args, " ")) }

// Processes returns the processes on the host, without zombies.
func (ns *namespace) Processes() (found []Process) {
	names, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, name := range names {
		if id, err := os.Readlink(name); err != nil || id != ns.id {
			continue
		}
		dir := filepath.Dir(filepath.Dir(name))
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			continue
		}
		if args := awaitArgs(dir); args != nil {
			found = append(found, Process{pid, args})
		}
	}
	return found
}

// awaitArgs returns the arguments of the process that a folder of /proc describes, or nil if it has
// ended. For a moment the kernel shows no arguments of a process that begins to run a program, and Start
// may return before it does. A process that is about to end has none either. So awaitArgs reads them
// until they are there or the process is a zombie.
func awaitArgs(dir string) []string {
	for deadline := time.Now().Add(leaveTime); ; time.Sleep(time.Millisecond) {
		line, err := os.ReadFile(dir + "/cmdline")
		if err != nil {
			return nil
		}
		if len(line) > 0 {
			return strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		}
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			return nil
		}
		_, name, _ := strings.Cut(string(stat), "(")
		at := strings.LastIndex(name, ") ") // the name may hold parentheses
		if at < 0 || strings.ContainsAny(name[at+2:at+3], "ZX") {
			return nil
		}
		if time.Now().After(deadline) {
			return []string{"[" + name[:at] + "]"}
		}
	}
}
