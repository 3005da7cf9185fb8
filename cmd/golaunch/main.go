// Golaunch starts the workers of a distributed job on this machine, watches
// them, and names the culprit when one fails. It takes torchrun's flags, PET_
// variables and worker environment, and the program may be Go, Python or
// anything that can be executed:
//
//	golaunch --nproc-per-node 4 ./train --epochs 3
//	golaunch --nproc-per-node gpu ./cmd/train      # a Go package: built, then run
//	golaunch --nnodes=1 --nproc_per_node=2 train.py
//
// "golaunch --help" lists the flags. The exit code is 0 when every worker
// succeeded; that of the worker which failed first, or 128+n if signal n killed
// it; 128+n when golaunch itself was told to stop by signal n; 1 for a program that
// cannot be built; and 2 for a command line that makes no sense or a program that is
// not there.
//
// SIGHUP stays ignored where it is when golaunch starts, as under nohup.
//
// Package [github.com/goddp/goddp/launcher] documents what happens to workers.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"

	"github.com/goddp/goddp/internal/version"
	"github.com/goddp/goddp/launcher"
)

// The exit codes for what is wrong before any worker runs.
const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	launcher.ReaperMain()
	os.Exit(run(os.Args[1:]))
}

// memoryGoal is where golaunch begins to collect garbage at once: above all that it
// needs, and what clients of its store may make it hold.
const memoryGoal = 128 << 20

func run(args []string) int {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(memoryGoal)
	}
	opts, err := parseFlags(args, os.LookupEnv)
	if err != nil {
		return complain(err)
	}
	switch {
	case opts.help:
		fmt.Print(help(opts))
		return 0
	case opts.version:
		fmt.Println(version.Of("golaunch"))
		return 0
	}

	// A write to a reader that has ended fails, and the job runs on. Ignore would do
	// that too, but the workers would inherit it.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	// Buffered, so that a second signal is there while the first is handled.
	signals := make(chan os.Signal, 4)
	building, stop := context.WithCancel(context.Background())
	if handled := heeded(opts.signals); len(handled) > 0 { // of none, Notify would take all
		signal.Notify(signals, handled...)
		building, stop = signal.NotifyContext(building, handled...)
	}
	prog, err := findProgram(building, opts)
	stop()
	if err != nil {
		select {
		case sig := <-signals:
			return 128 + int(sig.(syscall.Signal))
		default:
			return complain(err)
		}
	}
	defer prog.remove()

	cfg := opts.config()
	cfg.Dedicated = true
	cfg.Args, cfg.Name, cfg.Scratch, cfg.Signals = prog.args, prog.name, prog.temp, signals
	result, err := launcher.Run(context.Background(), cfg)
	if result == nil { // the job did not start, so Run has reported nothing
		return complain(err)
	}
	return launcher.ExitCode(err)
}

// heeded leaves out a SIGHUP that whoever started golaunch has ignored, as nohup does:
// Notify would undo it. A shell that starts golaunch in the background ignores SIGINT
// too, and may pass that on all the same.
func heeded(signals []os.Signal) []os.Signal {
	return slices.DeleteFunc(slices.Clone(signals), func(s os.Signal) bool { return s == syscall.SIGHUP && signal.Ignored(s) })
}

// complain reports what kept the job from starting.
func complain(err error) int {
	fmt.Fprintf(os.Stderr, "golaunch: %v\n", err)
	var usage *usageError
	if !errors.As(err, &usage) {
		return exitFailure
	}
	fmt.Fprintln(os.Stderr, "Run 'golaunch --help' for how to call it.")
	return exitUsage
}
