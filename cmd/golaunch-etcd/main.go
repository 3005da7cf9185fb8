// Golaunch-etcd takes part in an election in etcd for golaunch, which starts it for jobs with
// --rdzv-backend etcd. It is not for users. Without etcd's client golaunch itself starts in
// two thirds of the time.
//
// It reads requests from stdin, writes responses to stdout, and ends when stdin does. If a user
// starts it, with an argument or in a terminal, it says so and exits with 2.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/election/etcd"
)

func main() {
	if len(os.Args) > 1 || isTerminal(os.Stdin) {
		fmt.Fprintln(os.Stderr, "golaunch-etcd is started by golaunch --rdzv-backend etcd, for which it takes part in an election in etcd; it is not for users")
		os.Exit(2)
	}
	// A signal to all processes of a terminal is for golaunch, which ends this process in time.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := election.Serve(context.Background(), os.Stdin, os.Stdout, etcd.New); err != nil {
		fmt.Fprintf(os.Stderr, "golaunch-etcd: %v\n", err)
		os.Exit(1)
	}
}

// isTerminal reports whether a file is a terminal, or another character device.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
