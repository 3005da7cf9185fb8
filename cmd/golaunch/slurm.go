package main

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/goddp/goddp/internal/jobenv"
)

// slurmStep is what Slurm's variables say to a task that srun has started. All tasks of a step form one
// job, and each of them is a node of the job.
type slurmStep struct {
	flags map[string]string // values for flags that the user does not give
	gpus  string            // CUDA_VISIBLE_DEVICES of this task; "" if the variable need not change
	cores int               // cores of this task; 0 if unknown
}

// slurmTokenLine is the line of a batch script that creates a secret for all tasks.
const slurmTokenLine = "export " + jobenv.TokenVar + "=$(head -c 32 /dev/urandom | base64)"

// readSlurm reads the variables that srun sets for a task. It returns nil if srun did not start this
// process.
func readSlurm(lookup func(string) (string, bool)) (*slurmStep, error) {
	get := func(name string) string {
		value, _ := lookup(name)
		return value
	}
	number := func(name string) int {
		n, _ := strconv.Atoi(get(name)) // 0 if it is not set
		return n
	}
	if get("SLURM_STEP_ID") == "" || get("SLURM_STEP_NUM_TASKS") == "" {
		return nil, nil
	}
	tasks, local := number("SLURM_STEP_NUM_TASKS"), 1+strings.Count(get("SLURM_GTIDS"), ",")
	s := &slurmStep{flags: map[string]string{}, cores: cmp.Or(number("SLURM_CPUS_PER_TASK"), number("SLURM_CPUS_ON_NODE")/local)}
	if tasks > 1 {
		s.flags["nnodes"] = strconv.Itoa(tasks)
		s.flags["node-rank"] = get("SLURM_PROCID")
		s.flags["rdzv-id"] = "slurm-" + get("SLURM_JOB_ID") + "." + get("SLURM_STEP_ID")
		s.flags["rdzv-endpoint"] = fmt.Sprintf("%s:%d", firstHost(get("SLURM_STEP_NODELIST")), slurmPort(number("SLURM_JOB_ID"), number("SLURM_STEP_ID")))
	}
	if visible := get(jobenv.GPUsVar); visible != "" && visible != "NoDevFiles" { // Slurm sets NoDevFiles for a task without GPUs
		mine, err := taskGPUs(strings.Split(visible, ","), number("SLURM_GPUS_ON_NODE"), local, number("SLURM_LOCALID"))
		if err != nil {
			return nil, err
		}
		s.flags["nproc-per-node"] = strconv.Itoa(len(mine))
		s.gpus = strings.Join(mine, ",")
	}
	return s, nil
}

// taskGPUs returns the GPUs of one of a node's tasks. If the task sees fewer GPUs than the step has on this
// node, they are its own. Otherwise all tasks of the node see all GPUs, and divide them.
func taskGPUs(visible []string, onNode, tasks, task int) ([]string, error) {
	if tasks == 1 || len(visible) < onNode {
		return visible, nil
	}
	if len(visible)%tasks != 0 {
		return nil, usagef("Slurm started %d tasks on this node with %d GPUs: want srun --ntasks-per-node=1, or one task per GPU", tasks, len(visible))
	}
	n := len(visible) / tasks
	return visible[task*n:][:n], nil
}

// slurmPort returns a port for a step's rendezvous. Concurrent steps on a node have close job and step ids,
// and get different ports. The result is outside Linux's range for outgoing connections.
func slurmPort(job, step int) int { return 20000 + (job*37+step)%10000 }

// firstHost returns the first host of a list in Slurm's notation, such as "gpu[07-09,12],login1".
func firstHost(list string) string {
	var name strings.Builder
	for {
		text, rest, hasNumbers := strings.Cut(list, "[")
		text, _, isWhole := strings.Cut(text, ",")
		name.WriteString(text)
		if isWhole || !hasNumbers {
			return name.String()
		}
		numbers, rest, _ := strings.Cut(rest, "]")
		first, _, _ := strings.Cut(numbers, ",")
		first, _, _ = strings.Cut(first, "-")
		name.WriteString(first)
		list = rest
	}
}

// slurmHint returns a hint for a command that uses only one of several nodes of a Slurm job, or "".
func slurmHint(o *options, lookup func(string) (string, bool)) string {
	nodes, _ := lookup("SLURM_JOB_NUM_NODES")
	if _, isStep := lookup("SLURM_STEP_ID"); isStep || nodes == "" || nodes == "1" || o.rendezvous.standalone || o.rendezvous.nodes.most > 1 || o.hosts != nil {
		return ""
	}
	return fmt.Sprintf("this Slurm job has %s nodes, and golaunch uses one of them: \"srun golaunch\" uses all", nodes)
}
