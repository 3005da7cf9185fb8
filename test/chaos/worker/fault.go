package main

import (
	"context"
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
func (w *worker) commit(ctx context.Context, pg *comm.ProcessGroup, o operand) (operand, error) {
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
	case "overlap":
		return operand{}, w.overlap(ctx, pg)
	case "exit":
		os.Exit(exitTold)
	}
	return o, nil
}

// overlap makes a call whose operands overlap, and returns how it ended.
func (w *worker) overlap(ctx context.Context, pg *comm.ProcessGroup) (err error) {
	n, each := pg.Size(), []int{100, 20000}[w.pick/4%2]
	o, err := newOperand(pg, (n+1)*each, w.pick/8%2 == 0)
	if err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			usage, ok := p.(*comm.UsageError)
			if !ok {
				panic(p)
			}
			w.say("refused", "%v", usage)
			err = usage
		}
	}()
	whole, another := o.t.Range(0, n*each), (w.rank+1)%n*each
	var work *comm.Work
	switch w.pick % 4 {
	case 0:
		work = pg.AllToAll(whole, whole)
	case 1:
		work = pg.AllGather(whole, o.t.Range(another, another+each))
	case 2:
		work = pg.ReduceScatter(o.t.Range(another, another+each), whole, comm.Sum)
	case 3:
		work = pg.Coalesce(func(g *comm.ProcessGroup) {
			g.AllReduce(whole, comm.Sum)
			g.AllReduce(o.t.Range(n*each-1, n*each+1), comm.Sum)
		})
	}
	return work.Sync(ctx)
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
