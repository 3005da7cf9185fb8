package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/cmd/internal/version"
	"github.com/goddp/goddp/internal/jobenv"
)

// This file is what runs on the hosts of golaunch --hosts: hosts.go starts it.

// runForHost runs the request on standard input, and returns the exit code. If the connection is lost, the job
// on this host ends.
func runForHost() int {
	in := bufio.NewReader(os.Stdin)
	late := time.AfterFunc(silence, func() {
		fmt.Fprintf(os.Stderr, "golaunch: no request from golaunch --hosts within %v\n", silence)
		os.Exit(exitFailure)
	})
	text, err := in.ReadBytes('\n')
	late.Stop()
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
	scratch, err := os.MkdirTemp("", "golaunch_host_")
	if err == nil {
		defer os.RemoveAll(scratch)
		err = r.prepare(scratch)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "golaunch: host %s: %v\n", host, err)
		return exitUsage
	}
	signals := make(chan os.Signal, 4)
	go listen(in, host, signals) // until this process ends
	return run(r.Args, signals, &hostNode{r.Brief, scratch})
}

// hostNode is the configuration of a golaunch that golaunch --hosts has started.
type hostNode struct {
	isBrief bool   // the report of a failure is one line
	scratch string // the folder of the file with the job's secret
}

// prepare sets up this process for the request: its folder, its variables, and the secret in a file in the
// folder scratch. It returns an error if this host has a different golaunch or a different program.
func (r *nodeRequest) prepare(scratch string) error {
	if mine := version.Of("golaunch"); mine != r.Version {
		return fmt.Errorf("golaunch here is %q, but on the host that started the job it is %q: install the same version on both", mine, r.Version)
	}
	if r.Program != "" {
		sum, err := sumOf(r.Program)
		if err != nil {
			return fmt.Errorf("%w: copy the program to all hosts", err)
		}
		if sum != r.Sum {
			return fmt.Errorf("%s has SHA-256 %.12s..., and %.12s... on the host that started the job: copy it to all hosts", r.Program, sum, r.Sum)
		}
	}
	if err := os.Chdir(r.Dir); err != nil {
		return fmt.Errorf("%w: the job runs in the folder in which it was started", err)
	}
	token := filepath.Join(scratch, "token")
	if err := os.WriteFile(token, []byte(r.Token), 0o600); err != nil {
		return err
	}
	for _, v := range append(r.Env, jobenv.TokenFileVar+"="+token) {
		name, value, _ := strings.Cut(v, "=")
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

// listen turns the lines of golaunch --hosts into signals. When the connection is lost, listen stops the job with
// a SIGTERM. A second SIGTERM then kills the workers.
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
	signals <- syscall.SIGTERM
	say(fmt.Sprintf("host %s: the connection to the host that started the job is lost: stopping the workers", host))
	for {
		time.Sleep(hostsEnd)
		signals <- syscall.SIGTERM
	}
}
