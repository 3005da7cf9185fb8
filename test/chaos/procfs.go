package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// markVar marks, in the environment, what belongs to a scenario.
const markVar = "CHAOS_SCENARIO"

// process is one that was found in /proc.
type process struct {
	pid  int
	args string
}

func (p process) String() string { return fmt.Sprintf("pid %d (%s)", p.pid, p.args) }

// processes finds those of the scenario in dir: what carries its mark, or, in
// case that was taken off, runs from its folder. Zombies are not among them.
func processes(dir string) (found []process) {
	names, _ := filepath.Glob("/proc/[0-9]*")
	mark := []byte(markVar + "=" + dir)
	for _, name := range names {
		environ, _ := os.ReadFile(name + "/environ")
		exe, _ := os.Readlink(name + "/exe")
		marked := false
		for kv := range bytes.SplitSeq(environ, []byte{0}) {
			marked = marked || bytes.Equal(kv, mark)
		}
		if !marked && !strings.HasPrefix(exe, dir+"/") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(name))
		args, _ := os.ReadFile(name + "/cmdline")
		found = append(found, process{pid, strings.ReplaceAll(string(bytes.Trim(args, "\x00")), "\x00", " ")})
	}
	return found
}

// onlyChild is the child of a process that has no more than one.
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

// killProcesses kills all of the scenario's until none is left.
func killProcesses(dir string) {
	for found := processes(dir); len(found) > 0; found = processes(dir) {
		for _, p := range found {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
		pause()
	}
}

// address is where somebody listens.
type address struct{ network, addr string }

// listeners finds every stream socket that the processes listen on: TCP, and
// unix sockets with abstract names.
func listeners(ps []process) (found []address) {
	ours := map[string]bool{}
	for _, p := range ps {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p.pid))
		for _, fd := range fds {
			if link, err := os.Readlink(fd); err == nil && strings.HasPrefix(link, "socket:[") {
				ours[strings.Trim(link[len("socket:"):], "[]")] = true
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

// procTable is the lines of a table that have at least so many fields.
func procTable(path string, least int) (rows [][]string) {
	data, _ := os.ReadFile(path)
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) >= least {
			rows = append(rows, fields)
		}
	}
	return rows
}

// hexAddr reads 0100007F:1F90, an address in the byte order of a little-endian
// machine and a port.
func hexAddr(s string) string {
	host, port, _ := strings.Cut(s, ":")
	ip, _ := strconv.ParseUint(host, 16, 32)
	n, _ := strconv.ParseUint(port, 16, 16)
	if ip == 0 {
		ip = 0x0100007F
	}
	return fmt.Sprintf("%d.%d.%d.%d:%d", byte(ip), byte(ip>>8), byte(ip>>16), byte(ip>>24), n)
}
