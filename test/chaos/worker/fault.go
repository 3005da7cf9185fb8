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
	"github.com/goddp/goddp/comm/failure"
)

// commit commits the fault before the reduction of o. It returns the operand to reduce, or the zero
// operand if the worker leaves the reduction out.
func (w *worker) commit(ctx context.Context, pg *comm.ProcessGroup, o operand) (operand, error) {
	if w.fault == "reach" { // the campaign commits the fault
		w.say("reached", "")
		return o, nil
	}
	if w.fault == "socket" {
		shut, err := shutSocket(w.pick)
		if err != nil {
			w.wrong("no socket to shut: %v", err)
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
		os.Exit(exitFault)
	}
	return o, nil
}

// overlap makes a call whose operands overlap. It returns the call's error, or the usage error with
// which the call panics.
func (w *worker) overlap(ctx context.Context, pg *comm.ProcessGroup) (err error) {
	n, each := pg.Size(), []int{100, 20000}[w.pick/4%2]
	o, err := newOperand(pg, (n+1)*each, w.pick/8%2 == 0)
	if err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			usage, ok := p.(*failure.UsageError)
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

// shutSocket shuts down one of this process's connections, as a broken network would. It returns
// "store" if the connection has the store's port, else "peer". It does not close the descriptor,
// because another file could get the descriptor's number.
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
			continue // no socket, or not connected
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
		return "", errors.New("this process has no connection")
	}
	c := found[pick%len(found)]
	return c.which, syscall.Shutdown(c.fd, syscall.SHUT_RDWR)
}

// port returns the port of a TCP address, else "".
func port(a syscall.Sockaddr) string {
	switch a := a.(type) {
	case *syscall.SockaddrInet4:
		return fmt.Sprint(a.Port)
	case *syscall.SockaddrInet6:
		return fmt.Sprint(a.Port)
	}
	return ""
}
