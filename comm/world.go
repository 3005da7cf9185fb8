package comm

import (
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/goddp/goddp/internal/jobenv"
)

// World is a process's place in its job.
type World struct {
	Rank, Size           int // this process's number in the job, and the number of processes in the job
	LocalRank, LocalSize int // this process's number on its host, and the number of processes on its host
	// MasterAddr and MasterPort are the address of the job's store. If golaunch started this
	// process, this is the address at which golaunch forwards to the store.
	MasterAddr string
	MasterPort int
	// AgentStore says whether the launcher hosts the store. If it is false, rank 0 hosts the
	// store.
	AgentStore bool
	// Generation is the number of times that the launcher has restarted the job.
	Generation int
}

// WorldFromEnv reads the environment variables that golaunch and torchrun set.
// If neither RANK nor WORLD_SIZE is set, it returns a World of one rank. If LOCAL_RANK and
// LOCAL_WORLD_SIZE are not set, it assumes that all ranks are on one host. The error names
// every variable that is missing or invalid, and says what to do.
func WorldFromEnv() (World, error) {
	_, rank := os.LookupEnv(jobenv.RankVar)
	_, size := os.LookupEnv(jobenv.WorldSizeVar)
	if !rank && !size {
		return World{Size: 1, LocalSize: 1}, nil
	}
	var e env
	w := World{
		Rank:       e.required(jobenv.RankVar, 0),
		Size:       e.required(jobenv.WorldSizeVar, 1),
		AgentStore: os.Getenv(jobenv.AgentStoreVar) == "True",
		Generation: e.number(jobenv.RestartsVar, 0, 0),
	}
	w.LocalRank = e.number(jobenv.LocalRankVar, 0, w.Rank)
	w.LocalSize = e.number(jobenv.LocalWorldSizeVar, 1, w.Size)
	if w.Size > 1 || w.AgentStore {
		if w.MasterAddr = os.Getenv(jobenv.MasterAddrVar); w.MasterAddr == "" {
			e.addf("MASTER_ADDR is not set")
		}
		w.MasterPort = e.required(jobenv.MasterPortVar, 1)
		if w.launchedByGolaunch() {
			e.readAgent(&w)
		}
	}
	if err := w.validate(); len(e) == 0 && err != nil {
		e.addf("%v", err)
	}
	if len(e) > 0 {
		return World{}, fmt.Errorf("comm: the environment does not describe a job: %s: start the program with golaunch or torchrun, "+
			"or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself; without RANK and WORLD_SIZE it is a world of one", strings.Join(e, "; "))
	}
	return w, nil
}

// maxRanks is the largest world size. Each rank allocates memory for every other rank, so a
// wrong number in the environment could take all memory.
const maxRanks = 1 << 16

// validate returns an error if the fields of w contradict each other, or if Size exceeds
// maxRanks.
func (w World) validate() error {
	switch {
	case w.Size > maxRanks:
		return fmt.Errorf("a world of size %d, at most %d", w.Size, maxRanks)
	case w.Rank < 0 || w.Rank >= w.Size:
		return fmt.Errorf("rank %d in a world of size %d", w.Rank, w.Size)
	case w.LocalRank < 0 || w.LocalRank >= w.LocalSize:
		return fmt.Errorf("local rank %d in a local world of size %d", w.LocalRank, w.LocalSize)
	case w.MasterPort < 0 || w.MasterPort > math.MaxUint16:
		return fmt.Errorf("MASTER_PORT %d: want at most %d", w.MasterPort, math.MaxUint16)
	case w.LocalSize > w.Size:
		return fmt.Errorf("a local world of size %d in a world of size %d", w.LocalSize, w.Size)
	}
	return nil
}

// launchedByGolaunch reports whether the variables that golaunch sets belong to this job.
func (w World) launchedByGolaunch() bool { return os.Getenv(jobenv.MasterVar) == w.masterAddr() }

// readAgent replaces the address of the store by the one at which golaunch's agent forwards to it.
func (e *env) readAgent(w *World) {
	host, port, err := net.SplitHostPort(os.Getenv(jobenv.StoreVar))
	if err == nil {
		w.MasterPort, err = strconv.Atoi(port)
	}
	if err != nil {
		e.addf("%s: %v", jobenv.StoreVar, err)
	}
	w.MasterAddr, w.AgentStore = host, true
}

// oneHost reports whether all ranks are on this host.
func (w World) oneHost() bool { return w.LocalSize == w.Size }

// masterAddr returns the store's address as host:port.
func (w World) masterAddr() string { return net.JoinHostPort(w.MasterAddr, strconv.Itoa(w.MasterPort)) }

// env collects the error texts of environment variables.
type env []string

func (e *env) addf(format string, args ...any) { *e = append(*e, fmt.Sprintf(format, args...)) }

// required returns the number that a variable holds. It is an error if the variable is not set,
// or if the number is less than `least`.
func (e *env) required(name string, least int) int {
	if _, ok := os.LookupEnv(name); !ok {
		e.addf("%s is not set", name)
	}
	return e.number(name, least, 0)
}

// number returns the number that a variable holds, or fallback if the variable is not set. It
// is an error if the number is less than `least`.
func (e *env) number(name string, least, fallback int) int {
	s, ok := os.LookupEnv(name)
	if !ok {
		return fallback
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < least {
		e.addf("%s is %q, not a number of at least %d", name, s, least)
	}
	return n
}
