package main

import (
	"maps"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/jobenv"
)

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"n0": "n0", "n[0-1]": "n0", "n[3,5-7]": "n3", "gpu[07-09,12],login1": "gpu07", "a,b": "a", "rack[2-3]-n[01-04],x": "rack2-n01", "a-b[1],c": "a-b1",
	} {
		if got := firstHost(list); got != want {
			t.Errorf("%s: %q, want %q", list, got, want)
		}
	}
}

// TestSlurmStep checks what golaunch makes of the variables that Slurm 22.05 sets for a task.
func TestSlurmStep(t *testing.T) {
	step := map[string]string{
		"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NODELIST": "n[4-5]",
		"SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_GTIDS": "2,3", "SLURM_CPUS_ON_NODE": "16",
	}
	for _, test := range []struct {
		name, command string
		more          map[string]string
		want          func(o *options) bool
		err           string
	}{
		{name: "no flags", want: func(o *options) bool {
			r := o.rendezvous
			return o.nproc == 1 && r.nodes == nodeRange{4, 4} && r.nodeRank == 3 && r.endpoint == "n4:20261" && r.runID == "slurm-7.2" && o.slurm.cores == 8
		}},
		{name: "elastic", command: "--nnodes 2:4 --rdzv-backend c10d --rdzv-endpoint n9 --rdzv-id mine", want: func(o *options) bool {
			r := o.rendezvous
			return r.nodes == nodeRange{2, 4} && r.endpoint == "n9" && r.runID == "mine"
		}},
		{name: "a job for each task", command: "--standalone", want: func(o *options) bool { return o.rendezvous.nodes.most == 1 }},
		{name: "one node", command: "--nnodes 1", want: func(o *options) bool { return o.rendezvous.nodeRank == 0 && o.rendezvous.endpoint == "" }},
		{name: "tasks divide the GPUs", more: map[string]string{jobenv.GPUsVar: "0,1,2,3", "SLURM_GPUS_ON_NODE": "4"}, want: func(o *options) bool { return o.nproc == 2 && o.slurm.gpus == "2,3" }},
		{name: "tasks have their own", more: map[string]string{jobenv.GPUsVar: "5", "SLURM_GPUS_ON_NODE": "4"}, want: func(o *options) bool { return o.nproc == 1 && o.slurm.gpus == "5" }},
		{name: "all GPUs of the task", command: "--nproc-per-node gpu", more: map[string]string{jobenv.GPUsVar: "0,1,2,3", "SLURM_GPUS_ON_NODE": "4"}, want: func(o *options) bool { return o.nproc == 2 }},
		{name: "no GPUs", more: map[string]string{jobenv.GPUsVar: "NoDevFiles"}, want: func(o *options) bool { return o.nproc == 1 && o.slurm.gpus == "" }},
		{name: "the user's number", command: "--nproc-per-node 3", more: map[string]string{jobenv.GPUsVar: "0,1"}, want: func(o *options) bool { return o.nproc == 3 }},
		{name: "more tasks than GPUs", more: map[string]string{jobenv.GPUsVar: "0"}, err: "2 tasks on this node with 1 GPUs"},
		{name: "a batch script", more: map[string]string{"SLURM_STEP_ID": "", "SLURM_STEP_NUM_TASKS": ""}, want: func(o *options) bool { return o.slurm == nil && o.rendezvous.nodes.most == 1 }},
	} {
		env := maps.Clone(step)
		maps.Copy(env, test.more)
		lookup := func(name string) (string, bool) {
			value := env[name]
			return value, value != ""
		}
		o, err := parseFlags(append(strings.Fields(test.command), "train"), lookup)
		switch {
		case test.err != "":
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("%s: %v, want %q", test.name, err, test.err)
			}
		case err != nil:
			t.Errorf("%s: %v", test.name, err)
		case !test.want(o):
			t.Errorf("%s: %d workers, %+v, %+v", test.name, o.nproc, o.rendezvous, o.slurm)
		}
	}
}

// TestSlurmHint checks that a user learns that a batch script without srun uses one node.
func TestSlurmHint(t *testing.T) {
	for _, test := range []struct {
		args, env string
		want      bool
	}{
		{"train", "SLURM_JOB_NUM_NODES=2", true},
		{"train", "SLURM_JOB_NUM_NODES=1", false},
		{"train", "", false},
		{"--standalone train", "SLURM_JOB_NUM_NODES=2", false},
		{"train", "SLURM_JOB_NUM_NODES=2 SLURM_STEP_ID=0", false},
		{"--nnodes 2 --master-addr a train", "SLURM_JOB_NUM_NODES=2", false},
	} {
		lookup := func(name string) (string, bool) {
			for entry := range strings.FieldsSeq(test.env) {
				if key, value, _ := strings.Cut(entry, "="); key == name {
					return value, true
				}
			}
			return "", false
		}
		o, err := parseFlags(strings.Fields(test.args), lookup)
		if err != nil {
			t.Fatal(err)
		}
		if got := slurmHint(o, lookup); (got != "") != test.want {
			t.Errorf("%s with %s: %q", test.args, test.env, got)
		}
	}
}
