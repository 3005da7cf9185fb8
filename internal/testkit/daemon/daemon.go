// Package daemon starts processes that are hard to find and to kill, for tests and for the
// fault campaign. It needs Linux.
//
// A program that calls Main first becomes such a process if Command started it. The process
// locks a file. The processes that it forks hold the lock too. So a test can see from the
// file whether one of them lives, without finding them.
package daemon

import (
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Kinds of daemons.
const (
	Plain       = "plain"       // only has a session of its own, as all kinds do
	Mainless    = "mainless"    // its main thread has ended, and another thread lives
	Overwritten = "overwritten" // has overwritten its environment in memory
	Bare        = "bare"        // started without an environment
	Undumpable  = "undumpable"  // only root can read its files in /proc
	Forking     = "forking"     // forks and exits every 1 to 3 ms
	Deaf        = "deaf"        // ignores SIGHUP, SIGINT and SIGTERM
	Suspended   = "suspended"   // suspended by SIGSTOP
)

// Kinds holds all kinds.
var Kinds = []string{Plain, Mainless, Overwritten, Bare, Undumpable, Forking, Deaf, Suspended}

// Lifetime is the time after which a daemon ends by itself.
const Lifetime = time.Minute

// daemonArg is the first argument of a daemon. Its kind and its file follow.
const daemonArg = "be-a-daemon"

// Command returns a command that starts a daemon of a kind in its own session. program
// must call Main first. The daemon creates and locks file once it has the properties of its
// kind.
func Command(program, kind, file string) *exec.Cmd {
	cmd := exec.Command(program, daemonArg, kind, file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if kind == Bare {
		cmd.Env = []string{}
	}
	return cmd
}

// Main runs the daemon, and does not return, if Command started this process. Otherwise it
// returns at once.
func Main() {
	if isDaemon() {
		play(os.Args[2], os.Args[3])
		os.Exit(0)
	}
}

func isDaemon() bool { return len(os.Args) == 4 && os.Args[1] == daemonArg }

// Alive reports whether the daemon that locked file, or a process that it forked, lives.
func Alive(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil
}
