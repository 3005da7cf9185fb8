package launcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/launcher/internal/failure"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// Nodes says how the nodes of a job find each other, and how many they are. Each field must be
// equal on all nodes, unless its comment says otherwise.
type Nodes struct {
	// Min and Max bound the number of nodes. If Max is larger than Min, the job is elastic: it
	// goes on without nodes that are lost, and takes in nodes that come later.
	Min, Max int
	// Static says that the user numbers the nodes, by Rank. Rank differs on every node.
	Static bool
	Rank   int
	// Endpoint is the address, host:port, of the node that hosts the rendezvous. The job ends if
	// that node is lost. Endpoint is not used if Etcd is set.
	Endpoint string
	// Etcd lets an election in etcd choose the node that hosts the rendezvous, and choose another
	// one if that node is lost.
	Etcd *Etcd
	// JoinTimeout bounds the wait for Min nodes; the default is 10 minutes. LastCall is how long
	// more nodes are waited for after that; the default is 30 s. Heartbeat is the time between two
	// messages of each node; after three without an answer the node is lost. The default is 1 s.
	JoinTimeout, LastCall, Heartbeat time.Duration
	// Command is the program and its arguments. The nodes compare it to detect another job with the same
	// RunID and Endpoint, so it must be equal on all nodes: for example, it must not contain a folder that
	// differs between nodes. The default is Name and the arguments in Args.
	Command []string
	// LocalAddr is the address at which the other nodes reach this one. It differs on every node.
	// The default is the address from which this node connects to the others.
	LocalAddr string
}

// Etcd says how to reach etcd. The program golaunch-etcd must be beside this program or on PATH.
type Etcd struct {
	Endpoints                 []string // host:port
	HTTPS                     bool
	CAFile, CertFile, KeyFile string // PEM files for HTTPS; "" means the system's authorities, and no certificate
	Username, Password        string // "" means no authentication
}

// DefaultPort is the port of the rendezvous, as torchrun's.
const DefaultPort = 29400

// check returns an error if the number of nodes is wrong.
func (n *Nodes) check() error {
	switch {
	case n.Min < 1 || n.Max < n.Min:
		return fmt.Errorf("%d to %d nodes: want 1 <= MIN <= MAX", n.Min, n.Max)
	case n.Static && n.Min != n.Max:
		return fmt.Errorf("a range of %d to %d nodes with a fixed node rank: want one number of nodes", n.Min, n.Max)
	case n.Static && (n.Rank < 0 || n.Rank >= n.Max):
		return fmt.Errorf("node rank %d: want 0 <= rank < %d, the number of nodes", n.Rank, n.Max)
	}
	return nil
}

// ErrNoToken is Run's error for a job of several nodes without a secret, which anybody on the network could
// join.
var ErrNoToken = errors.New("a job of several nodes needs a secret that all its nodes know: `(umask 077; head -c 32 /dev/urandom | base64 > FILE)` makes one; " +
	"copy the file to all nodes and name it by --token-file or " + jobenv.TokenFileVar + ", or put the secret into " + jobenv.TokenVar + ". With --insecure, everybody who reaches the nodes can join the job")

// rendezvousOptions returns how this node takes part in the job.
func (a *agent) rendezvousOptions() (rendezvous.Options, error) {
	c := a.cfg
	o := rendezvous.Options{
		Discovery:  rendezvous.SingleNode{},
		Node:       rendezvous.NodeInfo{Host: hostname(), Workers: c.Workers, Rank: -1},
		MasterPort: func() int { return c.MasterPort },
		Host: rendezvous.HostOptions{
			Limits:      rendezvous.Limits{MinNodes: 1, MaxNodes: 1, MaxRestarts: c.MaxRestarts},
			Credentials: rendezvous.Credentials{JobID: randomID(), Secret: a.guard.secret, Insecure: a.guard.insecure},
			Addr:        c.MasterAddr, Port: c.MasterPort,
			Log: a.console.logger(), // slog's default would wait for a stderr that nobody reads
		},
	}
	if a.view != nil {
		o.Host.Watch = func(stream io.Reader) { observe(stream, a.view.run) }
	}
	n := c.Nodes
	if n != nil {
		o.Host.Limits.MinNodes, o.Host.Limits.MaxNodes, o.Host.Limits.Static = n.Min, n.Max, n.Static
	}
	if c.OnFailure != Restart {
		o.Host.Limits.Survival = rendezvous.Survival{MinWorkers: c.MinWorkers, Replace: c.OnFailure == Replace, Silence: c.SilenceLimit}
	}
	if n == nil {
		return o, nil
	}
	var token []byte
	if a.guard.given {
		token = a.guard.secret
	} else if !a.guard.insecure {
		return o, ErrNoToken
	}
	var err error
	if o.Identity, err = rendezvous.NewIdentity(token, c.RunID); err != nil {
		return o, err
	}
	o.Node.Rank, o.Node.Addr = n.Rank, n.LocalAddr
	o.Host.Addr, o.Host.Port = "", 0
	command := n.Command
	if command == nil {
		command = append([]string{c.Name}, c.Args[1:]...)
	}
	o.Host.Limits.Command = handshake.Arguments(command)
	o.Host.JoinTimeout, o.Host.LastCall, o.Host.Heartbeat = n.JoinTimeout, n.LastCall, n.Heartbeat
	if c.MasterPort == 0 {
		o.MasterPort = func() int {
			port, err := freePort()
			if err != nil {
				a.console.logf("MASTER_PORT: %v", err)
			}
			return port
		}
	}
	o.Discovery = rendezvous.Endpoint{Addr: n.Endpoint}
	if n.Etcd != nil {
		addr := n.LocalAddr
		if addr == "" {
			if addr, err = outgoingAddr(n.Etcd.Endpoints[0]); err != nil {
				return o, fmt.Errorf("finding this node's address on the route to etcd: %w", err)
			}
		}
		options := election.Options{
			Endpoints: n.Etcd.Endpoints, HTTPS: n.Etcd.HTTPS, CAFile: n.Etcd.CAFile, CertFile: n.Etcd.CertFile, KeyFile: n.Etcd.KeyFile,
			Username: n.Etcd.Username, Password: n.Etcd.Password,
			Name: c.RunID, TTL: 3 * cmp.Or(n.Heartbeat, rendezvous.DefaultHeartbeat),
		}
		open := func(ctx context.Context) (election.Election, error) {
			e, err := election.Start(ctx, options)
			if err != nil {
				return nil, err
			}
			a.electionPID.Store(int64(e.PID()))
			return e, nil
		}
		waiting := func(text string) { a.console.logf("waiting: %s", text) }
		o.Discovery = &rendezvous.Etcd{Addr: addr, Open: open, Endpoints: n.Etcd.Endpoints, Waiting: waiting}
	}
	return o, nil
}

// hostname returns this host's name, for messages.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// freePort returns a port that no program listens on at present.
func freePort() (int, error) {
	ln, err := net.Listen("tcp", ":0")
	if err != nil {
		return 0, err
	}
	port := ln.Addr().(*net.TCPAddr).Port
	return port, ln.Close()
}

// outgoingAddr returns the address of this host from which it connects with addr, host:port.
func outgoingAddr(addr string) (string, error) {
	c, err := net.Dial("udp", addr) // sends no packet
	if err != nil {
		return "", err
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	return host, err
}

// ordered handles an order of the rendezvous. It returns nil if the order is not an event for the core.
func (a *agent) ordered(o *rendezvous.Order) event {
	switch {
	case o.Begin != nil:
		a.begin(o.Begin)
		a.watch()
		return roundBegan{}
	case o.Stop != nil:
		if a.attempt == nil || o.Stop.Epoch != a.round.Number {
			return nil
		}
		if a.stopTime.IsZero() {
			a.stopTime = time.Now()
		}
		if a.stopped = o.Stop; a.cfg.Nodes != nil && a.core.phase == running {
			a.shown = o.Stop
			a.console.logf("stopping the workers: %s", o.Stop.Reason)
		}
		return stopOrdered{o.Stop.Gently, o.Stop.Kills}
	case o.Err != nil:
		return jobEnded{verdict: broken, err: o.Err, kills: a.cfg.OnFailure != Restart} // the others may go on without this node already
	case o.Verdict != nil:
		return a.judged(o.Verdict)
	case o.Start != nil:
		return a.replacing(o.Start)
	case o.Kill != nil:
		a.expel(o.Kill)
		return nil
	case o.Members != nil:
		a.regrouped(o.Members)
		return nil
	case o.Leave != nil:
		return a.leaveAnswered(o.Leave)
	case o.Notice != "":
		a.console.logf("%s", o.Notice)
		return nil
	case o.End == nil:
		a.console.logf("waiting: %s", o.Hold)
		return nil
	}
	r := o.End
	if a.attempt == nil && r.Reason == "" {
		a.console.logf("this node took part in no round and ran nothing; if it was meant for another job, give that job its own --rdzv-id, and without etcd its own --rdzv-endpoint")
	}
	switch {
	case len(r.Failures) > 0:
		a.err = a.jobFailure(r)
		return jobEnded{verdict: failed}
	case r.Agreed:
		return jobEnded{verdict: signalled}
	case r.Reason != "":
		return jobEnded{verdict: broken, err: errors.New(r.Reason)}
	}
	return jobEnded{verdict: succeeded}
}

// logRound logs that a round begins, why the previous round ended and, in a job of several nodes, this
// node's rank.
func (a *agent) logRound(round *rendezvous.Round) {
	if a.attempt != nil {
		cause, stack, isShown := "", []string(nil), a.shown == a.stopped
		if a.stopped != nil {
			cause = a.stopped.Reason
		}
		if len(round.Failures) > 0 { // empty if no node failed, or if this host of the rendezvous does not know the failures
			e := a.jobFailure(&rendezvous.Result{Failures: round.Failures})
			cause, stack, isShown = e.Error(), stackOf(&e.root), a.shown != nil && a.shown.Failure != nil && e.root.Is(a.shown.Failure)
			if e.root.Kind != failure.Worker { // the program did not fail
				cause = e.cause()
			}
		}
		switch {
		case round.Restarts > a.round.Restarts:
			a.console.logf("restart %d of %d: %s", round.Restarts, a.cfg.MaxRestarts, cause)
			if stack != nil {
				a.console.logStack(stack)
			}
		case !isShown:
			a.console.logf("going on: %s", cause)
		}
	}
	if a.cfg.Nodes != nil {
		ranks := fmt.Sprintf("rank %d", round.FirstRank)
		if a.cfg.Workers > 1 {
			ranks = fmt.Sprintf("ranks %d to %d", round.FirstRank, round.FirstRank+a.cfg.Workers-1)
		}
		a.console.logf("round %d: this is node %d of %d, with %s of %d", round.Number, round.Node, round.Nodes, ranks, round.WorldSize)
	}
}
