package launcher

import (
	"crypto/rand"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goddp/goddp/internal/jobenv"
)

// randomID returns 26 random letters and digits.
func randomID() string { return strings.ToLower(rand.Text()) }

// baseEnv returns the part of the environment that all workers of a round have in common: Env of the configuration,
// and defaults for variables that Env does not set.
func baseEnv(c *Config, nodes int) []string {
	isSet := func(name string) bool {
		_, ok := lookup(c.Env)(name)
		return ok
	}
	var env []string
	if nodes == 1 {
		// NCCL's listeners authenticate nobody, so they should use the loopback interface, which is enough for one
		// node. A value that the user set comes later in env and takes precedence.
		env = append(env, "NCCL_SOCKET_IFNAME=lo")
	}
	env = append(env, c.Env...)
	env = append(env, libraryPaths(c.Env)...)
	if c.Workers > 1 && !isSet(jobenv.ThreadsVar) { // as torchrun does
		env = append(env, jobenv.Chosen(jobenv.ThreadsVar, "1")...)
	}
	// If the user chose an error mode by any of these names, no second mode may be added.
	if !slices.ContainsFunc(slices.Concat(jobenv.AsyncErrorHandlingVars, jobenv.BlockingWaitVars), isSet) {
		env = append(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1")
	}
	return env
}

// libraryPaths returns the entries of env that name a library by a relative path, with the path made absolute,
// because a worker may change its folder before it opens the library.
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

// virtualEnv returns the variables that make the worker with local rank local see only its own GPU, as GPU 0. env
// is the environment of all workers.
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

// job returns the job's settings for the environment of the worker with the given local rank.
func (s *spawner) job(local int, p *process) *jobenv.Job {
	r := s.round
	return &jobenv.Job{
		Rank: r.FirstRank + local, WorldSize: r.WorldSize, LocalRank: local, LocalWorldSize: s.cfg.Workers,
		Node: r.Node, Nodes: r.Nodes, Role: s.cfg.Role,
		MasterAddr: r.MasterAddr, MasterPort: r.MasterPort,
		AgentStore: r.Nodes == 1, // in a job of several nodes only goddp's programs reach the agent's store, so for other programs rank 0 hosts one
		Restarts:   r.Restarts, MaxRestarts: s.cfg.MaxRestarts, ShutdownTimeout: s.cfg.ShutdownTimeout,
		ErrorFile: p.errorFile, StopFile: p.stopFile,
		ID: r.Credentials.JobID, RunID: s.cfg.RunID,
		Agent: jobenv.Agent{
			Store: r.StoreAddr, Coordinator: r.CoordinatorAddr, NodeAddr: r.Addr,
			Survives: s.cfg.OnFailure != Restart, Worker: p.number, Joins: p.order != nil,
		},
	}
}
