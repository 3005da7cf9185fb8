package comm

import (
	"fmt"
	"math"
	"net"
	"os"
	"strconv"

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
	j, err := jobenv.ReadJob(os.LookupEnv)
	w := World{
		Rank: j.Rank, Size: j.WorldSize, LocalRank: j.LocalRank, LocalSize: j.LocalWorldSize,
		MasterAddr: j.MasterAddr, MasterPort: j.MasterPort, AgentStore: j.AgentStore, Generation: j.Restarts,
	}
	if err == nil {
		err = w.validate()
	}
	if err != nil {
		return World{}, fmt.Errorf("comm: the environment does not describe a job: %w: start the program with golaunch or torchrun, "+
			"or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT yourself; without RANK and WORLD_SIZE it is a world of one", err)
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
		return fmt.Errorf("WORLD_SIZE %d: want at most %d", w.Size, maxRanks)
	case w.Rank < 0 || w.Rank >= w.Size:
		return fmt.Errorf("RANK %d with WORLD_SIZE %d: want 0 <= RANK < WORLD_SIZE", w.Rank, w.Size)
	case w.LocalRank < 0 || w.LocalRank >= w.LocalSize:
		return fmt.Errorf("LOCAL_RANK %d with LOCAL_WORLD_SIZE %d: want 0 <= LOCAL_RANK < LOCAL_WORLD_SIZE", w.LocalRank, w.LocalSize)
	case w.MasterPort < 0 || w.MasterPort > math.MaxUint16:
		return fmt.Errorf("MASTER_PORT %d: want at most %d", w.MasterPort, math.MaxUint16)
	case w.LocalSize > w.Size:
		return fmt.Errorf("LOCAL_WORLD_SIZE %d: want at most WORLD_SIZE %d", w.LocalSize, w.Size)
	}
	return nil
}

// oneHost reports whether all ranks are on this host.
func (w World) oneHost() bool { return w.LocalSize == w.Size }

// masterAddr returns the store's address as host:port.
func (w World) masterAddr() string { return net.JoinHostPort(w.MasterAddr, strconv.Itoa(w.MasterPort)) }
