package jobenv

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"time"
)

// Job is what a launcher tells a worker of its job. golaunch writes a Job. Ranks read the Job of golaunch or of
// torchrun.
type Job struct {
	Rank, WorldSize           int
	LocalRank, LocalWorldSize int // the rank on its node, and the number of ranks there
	Node, Nodes               int
	Role                      string
	// MasterAddr and MasterPort are the address of the job's store. In a Job that was read under golaunch, they are
	// the address at which the agent forwards to the store.
	MasterAddr string
	MasterPort int
	AgentStore bool // whether the launcher hosts the store; otherwise rank 0 does
	Restarts   int  // the number of times that the launcher has restarted the job
	// MaxRestarts, ShutdownTimeout and the files are golaunch's orders to the worker.
	MaxRestarts         int
	ShutdownTimeout     time.Duration
	ErrorFile, StopFile string
	ID, RunID           string // a random id, and the id that the user gave the launcher
	Agent               Agent
}

// Agent is what golaunch's agent of the node offers its workers. The addresses are host:port. It is zero under
// another launcher.
type Agent struct {
	Store, Coordinator string // where the worker finds them; a worker does not accept another program's store there
	NodeAddr           string // the address at which other nodes reach this one
	Survives           bool   // the job goes on when it loses workers
	Worker             int    // in such a job, the worker's number, which no other worker of the job ever has
	Joins              bool   // in such a job, the worker was started in place of a lost one
}

// Environ returns the job as entries of a worker's environment.
func (j *Job) Environ() []string {
	var env []string
	add := func(name string, value any) { env = append(env, fmt.Sprintf("%s=%v", name, value)) }
	add(LocalRankVar, j.LocalRank)
	add(LocalWorldSizeVar, j.LocalWorldSize)
	add(RankVar, j.Rank)
	add(WorldSizeVar, j.WorldSize)
	add("ROLE_NAME", j.Role)
	add("ROLE_RANK", j.Rank)
	add("ROLE_WORLD_SIZE", j.WorldSize)
	add("GROUP_RANK", j.Node)
	add("GROUP_WORLD_SIZE", j.Nodes)
	add(MasterAddrVar, j.MasterAddr)
	add(MasterPortVar, j.MasterPort)
	add(MasterVar, j.master())
	add(StoreVar, j.Agent.Store)
	add(CoordinatorVar, j.Agent.Coordinator)
	add(NodeAddrVar, j.Agent.NodeAddr)
	worker := "" // also hides the variable of an outer golaunch
	if j.Agent.Survives {
		worker = strconv.Itoa(j.Agent.Worker)
	}
	add(WorkerVar, worker)
	add(JoinsVar, j.Agent.Joins)
	add(JobIDVar, j.ID)
	add(RunIDVar, j.RunID)
	add(RestartsVar, j.Restarts)
	add("TORCHELASTIC_MAX_RESTARTS", j.MaxRestarts)
	if j.AgentStore {
		add(AgentStoreVar, "True")
	} else {
		add(AgentStoreVar, "False")
	}
	add(ErrorFileVar, j.ErrorFile)
	add(StopFileVar, j.StopFile)
	add(ShutdownTimeoutVar, strconv.FormatFloat(j.ShutdownTimeout.Seconds(), 'f', -1, 64))
	return env
}

func (j *Job) master() string { return net.JoinHostPort(j.MasterAddr, strconv.Itoa(j.MasterPort)) }

// ReadJob reads the job from a worker's environment: all fields except golaunch's orders. If neither RANK nor
// WORLD_SIZE is set, it is a job of one rank. If LOCAL_RANK and LOCAL_WORLD_SIZE are not set, all ranks are on
// one host. The error names each variable that is missing or has a bad value.
func ReadJob(lookup Lookup) (Job, error) {
	r := reader{lookup: lookup}
	j := Job{ID: r.text(JobIDVar), RunID: r.text(RunIDVar)}
	_, hasRank := lookup(RankVar)
	_, hasSize := lookup(WorldSizeVar)
	if !hasRank && !hasSize {
		j.WorldSize, j.LocalWorldSize = 1, 1
		return j, nil
	}
	j.Rank, j.WorldSize = r.required(RankVar, 0), r.required(WorldSizeVar, 1)
	j.LocalRank, j.LocalWorldSize = r.number(j.Rank, 0, math.MaxInt, LocalRankVar), r.number(j.WorldSize, 1, math.MaxInt, LocalWorldSizeVar)
	j.AgentStore, j.Restarts = r.text(AgentStoreVar) == "True", r.number(0, 0, math.MaxInt, RestartsVar)
	if j.WorldSize > 1 || j.AgentStore {
		if j.MasterAddr = r.text(MasterAddrVar); j.MasterAddr == "" {
			r.addf("%s is not set", MasterAddrVar)
		}
		j.MasterPort = r.required(MasterPortVar, 1)
		r.agent(&j)
	}
	return j, r.err()
}

// required is number for a variable that must be set.
func (r *reader) required(name string, least int) int {
	value, ok := r.lookup(name)
	switch {
	case !ok:
		r.addf("%s is not set", name)
	case value == "":
		r.errs = append(r.errs, bad(name, value, fmt.Sprintf("a number of at least %d", least)))
	}
	return r.number(0, least, math.MaxInt, name)
}

// agent reads what golaunch's agent offers. It replaces the store's address by the address at which the agent
// forwards to the store.
func (r *reader) agent(j *Job) {
	if r.text(MasterVar) != j.master() { // the variables are of another job: a worker of that job started this one's launcher
		return
	}
	j.Agent = ReadAgent(r.lookup)
	host, port, err := net.SplitHostPort(j.Agent.Store)
	if err == nil {
		j.MasterPort, err = strconv.Atoi(port)
	}
	if err != nil {
		r.addf("%s: %v", StoreVar, err)
	}
	j.MasterAddr, j.AgentStore = host, true
}

// ReadAgent reads the variables of golaunch's agent. They may belong to another job: see MasterVar.
func ReadAgent(lookup Lookup) Agent {
	r := reader{lookup: lookup}
	a := Agent{Store: r.text(StoreVar), Coordinator: r.text(CoordinatorVar), NodeAddr: r.text(NodeAddrVar)}
	if worker := r.text(WorkerVar); worker != "" {
		a.Survives, a.Worker, a.Joins = true, r.number(0, 0, math.MaxInt, WorkerVar), r.isOn(false, JoinsVar)
	}
	return a
}
