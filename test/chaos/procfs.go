package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// markVar is the environment variable that marks a process as belonging to a scenario. Its value is
// the scenario's folder.
const markVar = "CHAOS_SCENARIO"

// process is a process found in /proc.
type process struct {
	pid  int
	args string
}

func (p process) String() string { return fmt.Sprintf("pid %d (%s)", p.pid, p.args) }

// processes returns the processes of the scenario in dir, without zombies: those that carry its mark,
// and those that removed the mark but run a program from dir.
func processes(dir string) (found []process) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	mark := []byte(markVar + "=" + dir)
	for _, name := range names {
		awaitProgram(name)
		environ, _ := os.ReadFile(name + "/environ")
		exe, _ := os.Readlink(name + "/exe")
		isMarked := false
		for kv := range bytes.SplitSeq(environ, []byte{0}) {
			isMarked = isMarked || bytes.Equal(kv, mark)
		}
		if !isMarked && !strings.HasPrefix(exe, dir+"/") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(name))
		args, _ := os.ReadFile(name + "/cmdline")
		found = append(found, process{pid, strings.ReplaceAll(string(bytes.Trim(args, "\x00")), "\x00", " ")})
	}
	return found
}

// awaitProgram waits until the process that a folder of /proc describes runs its program. While a process
// begins to run one, the kernel shows neither its arguments nor its environment. awaitProgram does not
// wait for a zombie or a kernel thread, which have no program. It gives up after a second, because a
// process can erase its arguments.
func awaitProgram(folder string) {
	for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if args, err := os.ReadFile(folder + "/cmdline"); err != nil || len(args) > 0 {
			return
		}
		if _, err := os.Readlink(folder + "/exe"); err != nil {
			return
		}
	}
}

// onlyChild returns the child of a process. It is an error if the process has not exactly one.
func onlyChild(pid int) (int, error) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	var children []string
	for _, name := range lists {
		list, _ := os.ReadFile(name)
		children = append(children, strings.Fields(string(list))...)
	}
	if len(children) != 1 {
		return 0, fmt.Errorf("the children of process %d are %v, want one", pid, children)
	}
	return strconv.Atoi(children[0])
}

// killProcesses kills the scenario's processes until none is left.
func killProcesses(dir string) {
	for found := processes(dir); len(found) > 0; found = processes(dir) {
		for _, p := range found {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
		pause()
	}
}

// address is the address of a listener.
type address struct{ network, addr string }

// listeners returns the address of every stream socket on which the processes listen: TCP sockets,
// and unix sockets with abstract names.
func listeners(ps []process) (found []address) {
	ours := map[string]bool{} // inodes of the processes' sockets
	for _, p := range ps {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid))
		for _, fd := range fds {
			if target, err := os.Readlink(fd); err == nil && strings.HasPrefix(target, "socket:[") {
				ours[strings.Trim(target[len("socket:"):], "[]")] = true
			}
		}
	}
	for _, f := range procTable("/proc/net/tcp", 10) {
		const listening = "0A"
		if f[3] == listening && ours[f[9]] {
			found = append(found, address{"tcp", hexAddr(f[1])})
		}
	}
	for _, f := range procTable("/proc/net/tcp6", 10) {
		const listening = "0A"
		if _, port, ok := strings.Cut(f[1], ":"); ok && f[3] == listening && ours[f[9]] {
			n, _ := strconv.ParseUint(port, 16, 16)
			found = append(found, address{"tcp", fmt.Sprintf("[::1]:%d", n)})
		}
	}
	for _, f := range procTable("/proc/net/unix", 8) {
		const acceptsConnections = "00010000"
		if f[3] == acceptsConnections && ours[f[6]] {
			found = append(found, address{"unix", f[7]})
		}
	}
	return found
}

// procTable returns the fields of each line of a table that has at least the given number of fields.
func procTable(path string, least int) (rows [][]string) {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) >= least {
			rows = append(rows, fields)
		}
	}
	return rows
}

// hexAddr parses 0100007F:1F90, an IPv4 address in the byte order of a little-endian machine and a
// port. It replaces the address 0.0.0.0 by 127.0.0.1.
func hexAddr(s string) string {
	host, port, _ := strings.Cut(s, ":")
	ip, _ := strconv.ParseUint(host, 16, 32)
	n, _ := strconv.ParseUint(port, 16, 16)
	if ip == 0 {
		ip = 0x0100007F
	}
	return fmt.Sprintf("%d.%d.%d.%d:%d", byte(ip), byte(ip>>8), byte(ip>>16), byte(ip>>24), n)
}
