package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/version"
)

// This file is the side of a host in a job that golaunch starts by ssh: hosts.go is the other side.

// runForHost runs what the user's side asks for on standard input, and returns the exit code. If the connection
// is lost, the job ends here.
func runForHost() int {
	in := bufio.NewReader(os.Stdin)
	text, err := in.ReadBytes('\n')
	if err != nil {
		fmt.Fprintf(os.Stderr, "golaunch: %s is for golaunch --hosts: %v\n", nodeFlag, err)
		return exitUsage
	}
	var r nodeRequest
	if err := json.Unmarshal(text, &r); err != nil {
		fmt.Fprintf(os.Stderr, "golaunch: the request of golaunch --hosts: %v\n", err)
		return exitUsage
	}
	host, _ := os.Hostname()
	if err := r.prepare(); err != nil {
		fmt.Fprintf(os.Stderr, "golaunch: host %s: %v\n", host, err)
		return exitUsage
	}
	signals := make(chan os.Signal, 4)
	go listen(in, host, signals) // until this process ends
	return run(r.Args, signals, r.Brief)
}

// prepare makes this process one that can run the request: in its folder, with its variables. It returns an
// error if this host has another golaunch, or another program.
func (r *nodeRequest) prepare() error {
	if mine := version.Of("golaunch"); mine != r.Version {
		return fmt.Errorf("golaunch here is %q, and %q where the job was started: install the same", mine, r.Version)
	}
	if r.Program != "" {
		sum, err := sumOf(r.Program)
		if err != nil {
			return fmt.Errorf("%w: copy the program to all hosts", err)
		}
		if sum != r.Sum {
			return fmt.Errorf("%s has SHA-256 %.12s..., and %.12s... where the job was started: copy it to all hosts", r.Program, sum, r.Sum)
		}
	}
	if err := os.Chdir(r.Dir); err != nil {
		return fmt.Errorf("%w: the job runs in the folder in which it was started", err)
	}
	for _, v := range append(r.Env, handshake.TokenVar+"="+r.Token) {
		name, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// listen turns the lines from the user's side into signals. When the connection is lost, it stops the job with
// SIGTERM, and then, with a second one, kills the workers.
func listen(in *bufio.Reader, host string, signals chan<- os.Signal) {
	lines := make(chan string)
	go func() {
		defer close(lines)
		for {
			line, err := in.ReadString('\n')
			if err != nil {
				return
			}
			lines <- strings.TrimSuffix(line, "\n")
		}
	}()
	for isLost := false; !isLost; {
		select {
		case line, ok := <-lines:
			number, isStop := strings.CutPrefix(line, stopLine)
			if n, err := strconv.Atoi(number); isStop && err == nil {
				signals <- syscall.Signal(n)
			}
			isLost = !ok
		case <-time.After(silence):
			isLost = true
		}
	}
	fmt.Fprintf(os.Stderr, "golaunch: host %s: the connection with where the job was started is lost: stopping\n", host)
	for {
		signals <- syscall.SIGTERM
		time.Sleep(hostsEnd)
	}
}
