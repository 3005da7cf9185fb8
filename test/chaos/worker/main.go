// Command worker is the program that the chaos campaign torments. It uses comm
// as any training program does: it joins, reduces what it can check, and deals
// with an error as its flags say. Faults that need the program's help it
// commits itself.
//
// What the campaign has to know it prints, a line each:
//
//	@chaos RANK PID EVENT TEXT
package main

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/daemon"
	"github.com/goddp/goddp/store"
)

func main() {
	daemon.Main()
	var w worker
	var hosts, loader, sleep, serve bool
	var kind, lock string
	flag.StringVar(&w.fault, "fault", "", "`what` the victim does: reach, delay, skip, resize, overlap, exit, socket, stale graph")
	flag.IntVar(&w.victim, "victim", -1, "the `rank` that does it")
	flag.IntVar(&w.round, "round", 1, "in which round")
	flag.IntVar(&w.call, "call", 0, "before which reduction of it")
	flag.DurationVar(&w.delay, "delay", 0, "for how long")
	flag.IntVar(&w.pick, "pick", 0, "which socket, or which overlap")
	flag.StringVar(&w.manner, "manner", "leave", "what follows an error: leave, deaf, linger, recover")
	flag.StringVar(&w.finish, "finish", "", "a `file`: once it is there the job may end")
	flag.DurationVar(&w.timeout, "timeout", time.Second, "of each call")
	flag.DurationVar(&w.rejoin, "rejoin", 3*time.Second, "the `limit` of a second group")
	flag.BoolVar(&w.blind, "blind", false, "believe no sum of the first group from the fault on: nobody notices that the ranks differ")
	flag.DurationVar(&w.stagger, "stagger", 0, "join so much later than the rank before")
	flag.BoolVar(&hosts, "hosts", false, "take every rank for a host of its own, so that they meet by TCP")
	flag.BoolVar(&loader, "loader", false, "start a process in a session of its own")
	flag.StringVar(&kind, "daemon", "", "start a daemon of this `kind`")
	flag.StringVar(&lock, "lock", "", "the `file` that it locks, with the rank behind it")
	flag.BoolVar(&sleep, "sleep", false, "be that process")
	flag.BoolVar(&serve, "serve", false, "be a store, and nothing else")
	flag.Parse()
	switch {
	case sleep:
		time.Sleep(time.Hour)
		return
	case serve:
		serveStore()
		return
	case loader:
		startLoader()
	}
	w.rank, _ = strconv.Atoi(os.Getenv("RANK"))
	if kind != "" {
		startDaemon(kind, lock+strconv.Itoa(w.rank))
	}
	if hosts {
		os.Setenv("GODDP_HOST_ID", "host "+strconv.Itoa(w.rank))
	}
	comm.Main(w.train)
}

// serveStore prints a store's port, and serves it until this process is killed.
func serveStore() {
	server, err := store.Listen("127.0.0.1:0", nil)
	if err != nil {
		fail(err)
	}
	_, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		fail(err)
	}
	fmt.Printf("@chaos -1 %d store %s\n", os.Getpid(), port)
	time.Sleep(time.Hour)
}

// startLoader starts a child that no signal to this process's group reaches, as
// some data loaders do.
func startLoader() {
	child := exec.Command(os.Args[0], "-sleep")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		fail(err)
	}
}

// startDaemon starts a daemon and waits until it hides.
func startDaemon(kind, lock string) {
	if err := daemon.Command(os.Args[0], kind, lock).Start(); err != nil {
		fail(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		_, err := os.Stat(lock)
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			fail(fmt.Errorf("a daemon %q does not come up: %w", kind, err))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
