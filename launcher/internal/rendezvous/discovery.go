package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goddp/goddp/internal/awake"
	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/wire"
)

// Discovery finds the agent that hosts the rendezvous.
type Discovery interface {
	// Find returns the address of the host, or makes this agent the host. dead is the address of a host
	// that this agent has lost, or "" at first.
	Find(ctx context.Context, dead string) (*Found, error)
	Close() error
}

// Found is the outcome of a search: one of the fields is set.
type Found struct {
	Addr string // the host's address
	Role *Role  // this agent hosts the rendezvous
}

// Role is what an agent needs to host the rendezvous.
type Role struct {
	Listener net.Listener // for the other agents; nil if there are none
	State    election.State
	// Save saves the state of the job. If it is nil, the job ends with its host.
	Save func(context.Context, election.State) error
	// Over is closed when this agent may not host the rendezvous any more.
	Over <-chan struct{}
	// Resign ends the role. It is nil if there is nothing to end.
	Resign func(ctx context.Context, jobEnded bool) error
}

// SingleNode is the discovery of a job of one node.
type SingleNode struct{}

func (SingleNode) Find(context.Context, string) (*Found, error) { return &Found{Role: &Role{}}, nil }
func (SingleNode) Close() error                                 { return nil }

// Endpoint is the discovery by an address, host:port, that all nodes are given. The first agent on the node
// that has this address is the host.
type Endpoint struct {
	Addr   string
	lookup func(ctx context.Context, host string) ([]net.IPAddr, error) // nil: the system's
}

// ErrHostLost is in the error of an agent that has lost the host, and cannot find another.
var ErrHostLost = errors.New("the host of the rendezvous is lost, and only --rdzv-backend=etcd can replace it")

func (e Endpoint) Find(ctx context.Context, dead string) (*Found, error) {
	if dead != "" {
		return nil, fmt.Errorf("%s: %w", dead, ErrHostLost)
	}
	host, port, err := net.SplitHostPort(e.Addr)
	if err != nil {
		return nil, fmt.Errorf("--rdzv-endpoint: %w", err)
	}
	addrs, err := e.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	isOwn := func(addr net.IPAddr) bool { return wire.IsLocal(addr.String()) }
	isRemote := func(addr net.IPAddr) bool { return !addr.IP.IsLoopback() }
	switch {
	case slices.ContainsFunc(addrs, isOwn):
	case slices.ContainsFunc(addrs, isRemote):
		return &Found{Addr: e.Addr}, nil
	default:
		return nil, fmt.Errorf("--rdzv-endpoint %s: this host has no loopback address %v; it has %s", e.Addr, addrs[0].IP, wire.Loopback())
	}
	// The other nodes may know this one by another of its addresses.
	ln, err := wire.Listen(net.JoinHostPort("", port))
	switch {
	case errors.Is(err, syscall.EADDRINUSE): // by another agent of this node
		return &Found{Addr: e.Addr}, nil
	case err != nil:
		return nil, fmt.Errorf("the rendezvous: %w", err)
	}
	return &Found{Role: &Role{Listener: ln}}, nil
}

func (Endpoint) Close() error { return nil }

// resolve looks up a host name until there is an answer, at most for the time patience, or until ctx ends. The
// name may not be known yet. Without an answer, resolve returns an *unreachableError.
func (e Endpoint) resolve(ctx context.Context, host string) ([]net.IPAddr, error) {
	lookup := e.lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupIPAddr
	}
	for start := time.Now(); ; {
		addrs, err := lookup(ctx, host)
		if err == nil {
			return addrs, nil
		}
		if errors.Is(err, context.Canceled) { // ctx ended
			err = fmt.Errorf("lookup %s: %w", host, errNoAnswer)
		}
		if time.Since(start) > patience || !pause(ctx) {
			return nil, &unreachableError{e.Addr, err}
		}
	}
}

// Etcd is the discovery by an election in etcd.
type Etcd struct {
	// Open takes part in the election.
	Open func(context.Context) (election.Election, error)
	// Addr is where the other agents reach this one: a name or an IP address, without a port.
	Addr string
	// Endpoints are etcd's addresses, each host:port, as messages to the user name them.
	Endpoints []string
	// Waiting, if not nil, is called with a message for the user when a Find has taken longer than
	// patience. Each Find calls it at most once. All Finds that have lost the same host call it at most once.
	Waiting func(text string)

	election election.Election // nil before the first Find
	missed   string            // the lost host that Waiting was called for; "" if none
}

// electionTries is how often Find opens an election that ends, before it gives up.
const electionTries = 3

func (e *Etcd) Find(ctx context.Context, dead string) (found *Found, err error) {
	defer awake.Notice(patience, func() {
		switch {
		case e.Waiting == nil || dead != "" && e.missed == dead:
		case dead != "":
			e.missed = dead
			e.Waiting(e.name() + " has named no other host of the rendezvous yet in place of " + dead + ", which this node has lost")
		default:
			e.Waiting(e.name() + " has named no host of the rendezvous yet; does it run there?")
		}
	})()
	for range electionTries {
		if found, err = e.find(ctx, dead); !errors.Is(err, election.ErrEnded) {
			break
		}
		if e.election != nil { // its process was killed
			e.election.Close()
			e.election = nil
		}
	}
	if errors.Is(err, errNoHost) || errors.Is(err, election.ErrJobEnded) {
		err = fmt.Errorf("%s: %w", e.name(), err)
	}
	return found, err
}

func (e *Etcd) name() string { return "etcd at " + strings.Join(e.Endpoints, ", ") }

func (e *Etcd) find(ctx context.Context, dead string) (*Found, error) {
	if e.election == nil {
		var err error
		if e.election, err = e.Open(ctx); err != nil {
			return nil, err
		}
	}
	ln, err := net.Listen("tcp", net.JoinHostPort(e.Addr, "0"))
	if err != nil {
		return nil, fmt.Errorf("the rendezvous: %w", err)
	}
	host, term, err := e.election.Elect(ctx, net.JoinHostPort(e.Addr, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)), dead)
	if err != nil || term == nil {
		ln.Close()
	}
	switch {
	case err != nil:
		return nil, err
	case term == nil:
		return &Found{Addr: host}, nil
	}
	return &Found{Role: &Role{Listener: ln, State: term.State(), Save: term.Save, Over: term.Over(), Resign: term.Resign}}, nil
}

func (e *Etcd) Close() error {
	if e.election == nil {
		return nil
	}
	return e.election.Close()
}

// dialInterval is the time between two attempts to reach a host that may not have started yet.
const dialInterval = 100 * time.Millisecond
