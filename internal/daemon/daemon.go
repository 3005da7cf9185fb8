// Package daemon is, for tests and for the fault campaign, processes that hide from who
// wants to end them. They need Linux.
//
// A program that calls Main first is such a process when its arguments are those of
// Command. It locks a file, as the processes that it forks do, so that nobody has to
// find them to know whether one lives.
package daemon

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Kinds of daemons.
const (
	Plain       = "plain"       // in a session of its own
	Mainless    = "mainless"    // its main thread has ended, another lives
	Overwritten = "overwritten" // its environment is gone from its memory
	Bare        = "bare"        // started without an environment
	Undumpable  = "undumpable"  // /proc shows it to root alone
	Forking     = "forking"     // forks and exits every 1 to 3 ms
	Deaf        = "deaf"        // ignores SIGHUP, SIGINT and SIGTERM
	Suspended   = "suspended"   // by SIGSTOP
)

// Kinds are all of them.
var Kinds = []string{Plain, Mainless, Overwritten, Bare, Undumpable, Forking, Deaf, Suspended}

// Lifetime is when a daemon ends that nobody ended.
const Lifetime = time.Minute

// daemonArg is the first argument of a daemon; its kind and its file follow.
const daemonArg = "be-a-daemon"

// Command is a daemon in a session of its own. The file exists, locked, once the daemon
// is what its kind says. The program is one that calls Main.
func Command(program, kind, file string) *exec.Cmd {
	cmd := exec.Command(program, daemonArg, kind, file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if kind == Bare {
		cmd.Env = []string{}
	}
	return cmd
}

// Main returns at once in a process that is no daemon.
func Main() {
	if isDaemon() {
		play(os.Args[2], os.Args[3])
		os.Exit(0)
	}
}

func isDaemon() bool { return len(os.Args) == 4 && os.Args[1] == daemonArg }

// Alive reports whether a daemon that locked file, or a process that it forked, lives.
func Alive(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
