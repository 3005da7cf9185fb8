// Package rendezvous lets the agents of a job take part in it together.
//
// The launcher on each node is an agent ([Agent]). The agents of a job find each other by a
// [Discovery]. One of them is the host ([Host]): it decides for all agents which nodes take part
// in a round, when the round ends, whether another round follows, and how the job ends. A pure
// core makes these decisions. The host also opens the store and the coordinator of each round,
// in which the workers meet. Rounds are numbered from 0 and share no state, so nothing that an
// earlier round left can mislead a later one.
//
// A job has between MinNodes and MaxNodes nodes. The first round begins when MaxNodes agents have
// joined, or some time after MinNodes agents have (the last call). An agent that joins later is
// taken in at the next round, which begins soon: the workers of the current round finish their
// step and stop. Agents beyond MaxNodes stay in reserve. If a node is lost, or a worker fails, all
// agents stop their workers, and the next round begins with the nodes that are left. Failures of
// workers count as restarts; losses and arrivals of nodes do not.
//
// A round may survive lost workers ([Survival]). Then the agent asks the host what the failure of a worker means, and
// the host asks the coordinator. If the others go on, the host may order the start of another worker. Such a round also
// goes on without a node that is lost or leaves, and takes in another node in its place.
//
// An agent of another process has one connection with the host: TLS 1.3, on which both ends prove
// that they know the job's token ([Identity]). The connection carries streams: one with the
// messages between agent and host, and one for each connection of a worker with the store or the
// coordinator. The workers connect with their own agent, on the loopback interface, and the agent
// forwards their bytes. So the number of connections between nodes grows only with the number of
// nodes, and no other process can reach the store.
//
// Agents and host exchange heartbeats. Three heartbeats without an answer mean that the other end is
// lost. An agent that receives a signal leaves the job when its workers have ended. An agent whose workers
// are dead leaves at once. If the host is lost, or the agent in its process leaves, an election in
// etcd ([Etcd]) makes another agent the host; the other discoveries end the job.
package rendezvous

import "github.com/goddp/goddp/launcher/internal/failure"

// Credentials are the data by which the workers of a job authenticate to each other and to the store.
type Credentials struct {
	JobID  string // the job's id, which the store compares with its clients' job id; "" if there is none
	Secret []byte // the job's secret, by which workers authenticate to the store; nil if there is none
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
	// Addr is the address at which the other nodes reach this one.
	Addr string
	// MasterAddr and MasterPort are for the workers' MASTER_ADDR and MASTER_PORT: in a job of one
	// node the store's address, else a free port of node 0, where rank 0 can listen.
	MasterAddr string
	MasterPort int
	// StoreAddr and CoordinatorAddr are where the workers of this node find the store and the
	// coordinator.
	StoreAddr, CoordinatorAddr string
	// Credentials are the job's, by which the workers authenticate to the store and to each other.
	Credentials Credentials
	// Restarts is the number of rounds that failed before this one.
	Restarts int
	// Watched says that somebody looks at the job: see Agent.Watch.
	Watched bool `json:",omitempty"`
	// Starts are the orders to start the workers, by local rank, on a node that takes part since workers were lost; else
	// nil.
	Starts []*StartOrder `json:",omitempty"`
	// Failures are the failures that ended the previous round, the root cause first.
	Failures []failure.Failure `json:",omitempty"`
}
