// Package rendezvous is how the agents of a job find each other.
//
// A launcher on each node is an agent. Before it starts its workers it joins a
// round of the rendezvous, says how many workers it brings, and learns where
// they stand in the job: the global rank of its first worker, the world size,
// and the address of the key-value store through which the workers meet. When
// workers fail and are started again, the agent joins another round; rounds
// are numbered from 0 and share nothing, so that no key which a dead
// generation left in the store can mislead the next one.
//
// An agent, not worker rank 0, hosts the store and the coordinator: it outlives the workers, and a
// worker that is late by a minute still finds them.
//
// [Standalone] is the rendezvous of a job that has one node.
package rendezvous

import "context"

// Handler is one agent's end of a rendezvous. Its methods are called by one
// goroutine at a time.
type Handler interface {
	// Join blocks until the nodes of the next round have met and returns this
	// node's place among them. Whatever the previous round provided, its store
	// above all, is gone when Join returns.
	Join(ctx context.Context, node Node) (*Round, error)

	// Exited notes that the process of a rank of this node's has ended in the round under way,
	// and how. Ranks that wait for it hear of that, unless it had joined them.
	Exited(rank int, how string)

	// Close leaves the rendezvous and releases what the last round holds.
	Close() error
}

// Node is what a node brings to a round.
type Node struct {
	Workers int    // number of workers on this node; nodes may differ
	JobID   string // the job's id, which the store compares with its clients'; "": none
	Secret  []byte // the job's secret, by which workers authenticate to the store; nil: none
	// Insecure makes the store accept clients without authentication, from any host.
	Insecure bool
}

// Round is one meeting of the nodes, as one of them sees it.
type Round struct {
	// Number counts this job's rounds from 0.
	Number int
	// Node is this node's rank among the Nodes of the round.
	Node, Nodes int
	// FirstRank is the global rank of this node's first worker; the others
	// follow without gaps. WorldSize counts the workers of all nodes.
	FirstRank, WorldSize int
	// MasterAddr and MasterPort are where every worker of the round finds the
	// store: what MASTER_ADDR and MASTER_PORT tell them.
	MasterAddr string
	MasterPort int
}
