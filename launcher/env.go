package launcher

import (
	"crypto/rand"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// randomID returns 26 random letters and digits.
func randomID() string { return strings.ToLower(rand.Text()) }

// jobEnv returns the environment that the workers of all attempts have in common: Env of
// the configuration, defaults for variables that it does not set, and the job's variables.
func jobEnv(c *Config, jobID string) []string {
	base := c.Env
	isSet := func(names ...string) bool {
		for _, name := range names {
			for _, kv := range base {
				if strings.HasPrefix(kv, name+"=") {
					return true
				}
			}
		}
		return false
	}
	env := append([]string{}, base...)
	env = append(env, libraryPaths(base)...)
	env = append(env, jobenv.ThreadsEnv(func(name string) bool { return isSet(name) }, c.Workers)...)
	// If the user chose an error mode by any of these names, no second mode may be added.
	if !isSet(slices.Concat(jobenv.AsyncErrorHandlingVars, jobenv.BlockingWaitVars)...) {
		env = append(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1")
	}
	return append(env,
		jobenv.JobIDVar+"="+jobID,
		"ROLE_NAME="+c.Role,
		jobenv.LocalWorldSizeVar+"="+strconv.Itoa(c.Workers),
		"TORCHELASTIC_MAX_RESTARTS="+strconv.Itoa(c.MaxRestarts),
		jobenv.RunIDVar+"="+c.RunID,
		jobenv.ShutdownTimeoutEnv(c.ShutdownTimeout),
	)
}

// libraryPaths returns the entries of env that name a library by a relative path, with the absolute one: a
// worker may change its folder before it opens the library.
func libraryPaths(env []string) (absolute []string) {
	for _, kv := range env {
		name, path, _ := strings.Cut(kv, "=")
		if !jobenv.IsLibrary(name) || !strings.ContainsRune(path, filepath.Separator) || filepath.IsAbs(path) {
			continue
		}
		if path, err := filepath.Abs(path); err == nil {
			absolute = append(absolute, name+"="+path)
		}
	}
	return absolute
}

// virtualEnv returns the variables by which the worker with local rank local sees its own GPU alone, as
// GPU 0. env is the environment of all workers.
func virtualEnv(env []string, local int) []string {
	gpu := strconv.Itoa(local)
	if visible, ok := lookup(env)(jobenv.GPUsVar); ok {
		gpu = ""
		if all := strings.Split(visible, ","); local < len(all) {
			gpu = all[local]
		}
	}
	return []string{"LOCAL_RANK=0", jobenv.GPUsVar + "=" + gpu}
}

// workerEnv adds to env the variables that hold one worker's ranks and the store's address.
func workerEnv(env []string, round *rendezvous.Round, local int, errorFile string) []string {
	add := func(name string, value any) { env = append(env, fmt.Sprintf("%s=%v", name, value)) }
	env = env[:len(env):len(env)]
	rank := round.FirstRank + local
	add(jobenv.LocalRankVar, local)
	add(jobenv.RankVar, rank)
	add("ROLE_RANK", rank)
	add("GROUP_RANK", round.Node)
	add(jobenv.WorldSizeVar, round.WorldSize)
	add("ROLE_WORLD_SIZE", round.WorldSize)
	add("GROUP_WORLD_SIZE", round.Nodes)
	add(jobenv.MasterAddrVar, round.MasterAddr)
	add(jobenv.MasterPortVar, round.MasterPort)
	add(jobenv.MasterVar, net.JoinHostPort(round.MasterAddr, strconv.Itoa(round.MasterPort)))
	add(jobenv.StoreVar, round.StoreAddr)
	add(jobenv.CoordinatorVar, round.CoordinatorAddr)
	add(jobenv.NodeAddrVar, round.Addr)
	add(jobenv.RestartsVar, round.Restarts)
	if round.Nodes == 1 {
		add(jobenv.AgentStoreVar, "True")
	} else { // no program but goddp's reaches the agent's store, so rank 0 hosts its own
		add(jobenv.AgentStoreVar, "False")
	}
	add(jobenv.ErrorFileVar, errorFile)
	if round.Nodes == 1 {
		// NCCL's listeners authenticate nobody, so they should use the loopback interface,
		// which is enough for one node. A value that the user set comes later in env and
		// takes precedence.
		env = append([]string{"NCCL_SOCKET_IFNAME=lo"}, env...)
	}
	return env
}
