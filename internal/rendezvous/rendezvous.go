// Package rendezvous connects the agents of a job.
//
// The launcher on each node is an agent. Before it starts its workers, it joins a round of
// the rendezvous and states its number of workers. It learns the global rank of its first
// worker, the world size, and the address of the key-value store through which the workers
// connect. If workers fail and are started again, the agent joins another round. Rounds are
// numbered from 0 and share no state, so keys that an earlier round left in its store cannot
// mislead a later one.
//
// An agent hosts the store and the coordinator, not the worker of rank 0. The agent outlives
// the workers, so a worker that is late by a minute still finds them.
//
// [Standalone] is the rendezvous of a job on one node.
package rendezvous

import "context"

// Handler is one agent's end of a rendezvous. Its methods are called by one
// goroutine at a time.
type Handler interface {
	// Join blocks until all nodes of the next round have joined, and returns this node's
	// place among them. When Join returns, the previous round's store and coordinator are
	// closed.
	Join(ctx context.Context, node Node) (*Round, error)

	// Exited records that the worker of a rank of this node has ended in the current round,
	// and how. Ranks that wait for it to join learn of this.
	Exited(rank int, how string)

	// Close leaves the rendezvous, and closes the last round's store and coordinator.
	Close() error
}

// Node describes a node that joins a round.
type Node struct {
	Workers int    // number of workers on this node; nodes may differ
	JobID   string // the job's id, which the store compares with that of its clients; "" if there is none
	Secret  []byte // the job's secret, by which workers authenticate to the store; nil if there is none
	// Insecure makes the store accept clients without authentication, from any host.
	Insecure bool
}

// Round describes a round to one of its nodes.
type Round struct {
	// Number is the number of the round, from 0.
	Number int
	// Node is this node's rank among the Nodes of the round.
	Node, Nodes int
	// FirstRank is the global rank of this node's first worker. The other workers of the
	// node have the following ranks. WorldSize is the number of workers of all nodes.
	FirstRank, WorldSize int
	// MasterAddr and MasterPort are the store's address. The workers get them in
	// MASTER_ADDR and MASTER_PORT.
	MasterAddr string
	MasterPort int
	// StoreAddr and CoordinatorAddr are where the workers of this node find the store and the coordinator.
	StoreAddr, CoordinatorAddr string
	// Restarts is the number of rounds that failed before this one.
	Restarts int
}
