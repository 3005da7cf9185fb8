package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/goddp/goddp/comm"
)

// commit commits the fault before the reduction of o, and returns what to
// reduce: the zero operand for nothing.
func (w *worker) commit(pg *comm.ProcessGroup, o operand) (operand, error) {
	if w.fault == "reach" { // the campaign does the rest
		w.say("reached", "")
		return o, nil
	}
	if w.fault == "socket" {
		shut, err := shutSocket(w.pick)
		if err != nil {
			w.wrong("shutting a socket: %v", err)
		}
		w.say("fault", "%s", shut)
		return o, nil
	}
	w.say("fault", "")
	switch w.fault {
	case "delay":
		time.Sleep(w.delay)
		w.say("awake", "")
	case "skip":
		return operand{}, nil
	case "resize":
		return newOperand(pg, 2*len(o.values), false)
	case "exit":
		os.Exit(exitTold)
	}
	return o, nil
}

// shutSocket shuts one of this process's connections down, as a network that
// breaks would, and says whose it was: "store", by its port, or "peer".
// Closing the descriptor itself would be this program's fault: its number may
// be another file's a moment later.
func shutSocket(pick int) (which string, err error) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return "", err
	}
	type connection struct {
		fd    int
		which string
	}
	var found []connection
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		far, err := syscall.Getpeername(fd)
		if err != nil {
			continue // not a socket, or one that is not connected
		}
		near, err := syscall.Getsockname(fd)
		if err != nil {
			continue
		}
		c := connection{fd, "peer"}
		if store := os.Getenv("MASTER_PORT"); port(far) == store || port(near) == store {
			c.which = "store"
		}
		found = append(found, c)
	}
	if len(found) == 0 {
		return "", errors.New("there is none")
	}
	c := found[pick%len(found)]
	return c.which, syscall.Shutdown(c.fd, syscall.SHUT_RDWR)
}

// port is that of a TCP address, else "".
func port(a syscall.Sockaddr) string {
	switch a := a.(type) {
	case *syscall.SockaddrInet4:
		return fmt.Sprint(a.Port)
	case *syscall.SockaddrInet6:
		return fmt.Sprint(a.Port)
	}
	return ""
}
