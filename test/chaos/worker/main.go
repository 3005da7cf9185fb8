// Command worker is one rank of the jobs of the fault campaign (test/chaos). It uses comm as any
// training program does: it makes a process group, reduces values whose sums it can check, and acts
// on an error as its flag -on-error says. It commits the faults that need the program's help.
//
// It prints a line for each event that the campaign needs:
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
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit/daemon"
)

func main() {
	daemon.Main()
	var w worker
	var hosts, loader, sleep, serve bool
	var kind, lock string
	flag.StringVar(&w.fault, "fault", "", "the `fault` that the victim commits: reach, delay, skip, resize, overlap, exit, socket, stale graph")
	flag.IntVar(&w.victim, "victim", -1, "the `rank` that commits the fault")
	flag.IntVar(&w.round, "round", 1, "the round in which the fault comes")
	flag.IntVar(&w.call, "call", 0, "the reduction of that round before which the fault comes")
	flag.DurationVar(&w.delay, "delay", 0, "the length of a delay")
	flag.IntVar(&w.pick, "pick", 0, "chooses the socket to shut, or the operands that overlap")
	flag.StringVar(&w.onError, "on-error", "leave", "what the worker does after an error: leave, hang, linger, recover")
	flag.StringVar(&w.finish, "finish", "", "rank 0 ends the job when this `file` exists")
	flag.DurationVar(&w.timeout, "timeout", time.Second, "the timeout of each call")
	flag.DurationVar(&w.rejoin, "rejoin", 3*time.Second, "the time `limit` for making a second group")
	flag.BoolVar(&w.isBlind, "blind", false, "check no sum of the first group after the fault, because nothing notices that the ranks' calls differ")
	flag.DurationVar(&w.stagger, "stagger", 0, "the time between the joins of two ranks")
	flag.BoolVar(&hosts, "hosts", false, "let the ranks connect by TCP, as if each were on its own host")
	flag.BoolVar(&loader, "loader", false, "start a child process in its own session")
	flag.StringVar(&kind, "daemon", "", "start a daemon of this `kind`")
	flag.StringVar(&lock, "lock", "", "the daemon locks this `file`, whose name the rank is appended to")
	flag.BoolVar(&sleep, "sleep", false, "be that child process")
	flag.BoolVar(&serve, "serve", false, "serve a store and be no rank")
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

// serveStore serves a store until this process is killed, and prints the store's port.
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

// startLoader starts a child in its own session, as some data loaders do. Signals to this
// process's group do not reach the child.
func startLoader() {
	child := exec.Command(os.Args[0], "-sleep")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		fail(err)
	}
}

// startDaemon starts a daemon and waits until the daemon has locked its file.
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
			fail(fmt.Errorf("a daemon %q has not locked its file after 10 s: %w", kind, err))
		}
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
