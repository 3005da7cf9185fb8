// Golaunch-etcd takes part in an election in etcd for golaunch, which starts it for jobs with
// --rdzv-backend etcd. It is not for users. Without etcd's client golaunch itself starts in
// two thirds of the time.
//
// It reads requests from stdin, writes responses to stdout, and ends when stdin does.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/election/etcd"
)

func main() {
	// A signal to all processes of a terminal is for golaunch, which ends this process in time.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := election.Serve(os.Stdin, os.Stdout, etcd.New); err != nil {
		fmt.Fprintf(os.Stderr, "golaunch-etcd: %v\n", err)
		os.Exit(1)
	}
}
