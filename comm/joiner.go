package comm

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/store"
)

// joiner holds what Init knows before it opens anything.
type joiner struct {
	Options // with defaults, and with what the environment adds to CheckCalls and ErrorMode

	env       jobenv.Settings
	world     World         // this process's place in the job
	oneHost   bool          // all ranks are on this host
	isPending bool          // see pending
	isElastic bool          // Reconfigure was called
	agent     jobenv.Agent  // what golaunch's agent offers; zero under another launcher
	main      *mainRun      // the run of Main that the group is made in; nil outside Main
	local     *localJob     // the job of Local; nil outside Local
	kv        store.Store   // the job's store
	member    store.Member  // this process's identity in the job
	refusal   device.Buffer // see backend.Refusal
	deadline  time.Time     // when Init gives up, unless the process is suspended meanwhile
}

// newJoiner reads the options and the environment.
func newJoiner(opts *Options) (*joiner, error) {
	j := &joiner{Options: opts.orDefaults()}
	if err := j.readSettings(); err != nil {
		return nil, err
	}
	if err := j.readWorld(); err != nil {
		return nil, err
	}
	if err := j.readMember(); err != nil {
		return nil, fmt.Errorf("comm: %w", err)
	}
	if j.isPending = j.agent.Joins; j.isPending {
		j.member.Rank = -1 // its rank may be another process's
	}
	return j, nil
}

// readSettings reads the settings from the environment, and checks the timeouts. It does not change an
// ErrorMode that the caller has set.
func (j *joiner) readSettings() (err error) {
	if j.env, err = jobenv.ReadSettings(os.LookupEnv); err != nil {
		return fmt.Errorf("comm: %w", err)
	}
	if j.Timeout < 0 || j.ShutdownTimeout < 0 {
		return fmt.Errorf("comm: Options: Timeout is %v and ShutdownTimeout %v, want 0 or more of each", j.Timeout, j.ShutdownTimeout)
	}
	f := j.env.Failures
	j.CheckCalls = j.CheckCalls || f.CheckCalls
	switch {
	case j.ErrorMode != DefaultErrorMode:
	case f.BlockingWait:
		j.ErrorMode = BlockingWait
	case f.NoHandling:
		j.ErrorMode = NoErrorHandling
	case f.CleanUpOnly:
		j.ErrorMode = CleanUpOnly
	default:
		j.ErrorMode = AsyncErrorHandling
	}
	return nil
}

// readWorld reads this process's place in the job from the options or the environment. If golaunch's agent hosts the
// store, readWorld also reads what the agent offers.
func (j *joiner) readWorld() (err error) {
	if j.World == nil {
		if j.world, err = WorldFromEnv(); err != nil {
			return err
		}
		j.warnOfOtherTasks()
	} else {
		j.world = *j.World
		j.world.LocalSize = cmp.Or(j.world.LocalSize, j.world.Size)
		if err := j.world.validate(); err != nil {
			return fmt.Errorf("comm: Options.World: %w", err)
		}
	}
	j.oneHost = j.world.oneHost()
	if agent := jobenv.ReadAgent(os.LookupEnv); j.world.AgentStore && agent.Store == j.world.masterAddr() {
		j.agent = agent
	}
	return nil
}

// warnOfOtherTasks logs a warning if srun or mpirun has started several tasks, but this process joins a job of
// one rank. Each task then trains by itself, which nothing else reports.
func (j *joiner) warnOfOtherTasks() {
	if _, isSet := os.LookupEnv(jobenv.WorldSizeVar); isSet {
		return
	}
	for _, name := range []string{"SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"} {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil && n > 1 {
			j.Log.Warn(fmt.Sprintf("comm: this process trains alone, because RANK and WORLD_SIZE are not set, but it is one of %d tasks (%s): start the tasks with golaunch, or set these variables", n, name))
			return
		}
	}
}

// launched reports whether golaunch hosts the job's store and coordinator.
func (j *joiner) launched() bool { return j.agent.Store != "" }

// anyStore reports whether the job's store may lack goddp's handshake, as the store of torchrun
// does.
func (j *joiner) anyStore() bool { return j.world.AgentStore && !j.launched() }
