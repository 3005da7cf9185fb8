// Golaunch-etcd takes part in an election in etcd for golaunch, which starts it for jobs with
// --rdzv-backend etcd. It is not for users. Without etcd's client golaunch itself starts in
// two thirds of the time.
//
// It reads requests from stdin, writes responses to stdout, and ends when stdin does. If a user
// starts it, with an argument or in a terminal, it says so and exits with 2.
//
// # Keys
//
// When the host of the rendezvous dies, an election in etcd makes another agent the host.
//
// Under the prefix /goddp/NAME/ of a job there are three keys:
//
//	host   the address of the elected agent. It has the lease of this agent, which ends a few seconds
//	       after the agent does.
//	state  how far the job is: the number of the next round, and of the restarts. Only the elected
//	       agent writes it, in a transaction that requires that the key host is still the agent's own.
//	       The key outlives its writer by half a minute, in which the other agents elect the next host.
//	       It is deleted when the job ends. So another job can have the same name.
//	ended  says that the job has ended. The last host writes the key, and the key stays for a day. An agent
//	       that has lost the host leaves if it finds this key. Without the key it would be elected and run
//	       the job again. An agent that finds the key when it first looks belongs to another job and ignores
//	       the key. The first host of that other job deletes the key.
//
// So a host that was cut off from etcd, and replaced, cannot begin a round any more.
//
// Writes to etcd that failed may have taken effect. Each is a transaction that can be repeated.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/goddp/goddp/internal/election"
)

func main() {
	if len(os.Args) > 1 || isTerminal(os.Stdin) {
		fmt.Fprintln(os.Stderr, "golaunch-etcd is started by golaunch --rdzv-backend etcd, for which it takes part in an election in etcd; it is not for users")
		os.Exit(2)
	}
	// A signal to all processes of a terminal is for golaunch, which ends this process in time.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	if err := election.Serve(context.Background(), os.Stdin, os.Stdout, open); err != nil {
		fmt.Fprintf(os.Stderr, "golaunch-etcd: %v\n", err)
		os.Exit(1)
	}
}

// isTerminal reports whether a file is a terminal, or another character device.
func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
