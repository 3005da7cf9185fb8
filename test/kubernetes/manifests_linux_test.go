package kubernetes

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// manifests are the objects of a file, by kind.
type manifests struct {
	PersistentVolumeClaim  core.PersistentVolumeClaim
	Service                core.Service
	Job                    batch.Job
	JobSet                 v1alpha2.JobSet
	ClusterTrainingRuntime v1alpha1.ClusterTrainingRuntime
	TrainJob               v1alpha1.TrainJob
}

// read decodes a file's objects, and fails the test if one has a field that its type does not have.
func read(t *testing.T, file string) (m manifests) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(examples, file))
	if err != nil {
		t.Fatal(err)
	}
	for part := range bytes.SplitSeq(text, []byte("\n---\n")) {
		var head struct{ Kind string }
		if err := yaml.Unmarshal(part, &head); err != nil {
			t.Fatal(err)
		}
		object, ok := map[string]any{
			"PersistentVolumeClaim": &m.PersistentVolumeClaim, "Service": &m.Service, "Job": &m.Job, "JobSet": &m.JobSet,
			"ClusterTrainingRuntime": &m.ClusterTrainingRuntime, "TrainJob": &m.TrainJob,
		}[head.Kind]
		if !ok {
			t.Fatalf("%s: kind %q", file, head.Kind)
		}
		if err := yaml.UnmarshalStrict(part, object); err != nil {
			t.Fatalf("%s: %s: %v", file, head.Kind, err)
		}
	}
	return m
}

// pod is what a kubelet knows of a pod: its container, and its name in the cluster's DNS.
type pod struct {
	core.Container
	name string
}

const indexField = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

// environment returns the container's variables in the pod with an index. A secret's file lies in the folder secrets.
func (p pod) environment(t *testing.T, index int, secrets string) (env []string) {
	for _, v := range p.Env {
		value := v.Value
		if v.ValueFrom != nil {
			if v.ValueFrom.FieldRef == nil || v.ValueFrom.FieldRef.FieldPath != indexField {
				t.Fatalf("%s: value from %v", v.Name, v.ValueFrom)
			}
			value = fmt.Sprint(index)
		}
		for _, m := range p.VolumeMounts {
			if m.Name == "token" {
				value = strings.Replace(value, m.MountPath, secrets, 1)
			}
		}
		env = append(env, v.Name+"="+value)
	}
	return env
}

// trainerPod is the container that the torch policy of Trainer 2.0 makes of a runtime and a job.
func trainerPod(m manifests) pod {
	node := m.ClusterTrainingRuntime.Spec.Template.Spec.ReplicatedJobs[0]
	c := node.Template.Spec.Template.Spec.Containers[0]
	job := m.TrainJob
	c.Args = job.Spec.Trainer.Args
	name := fmt.Sprintf("%s-%s-0", job.Name, node.Name)
	c.Env = append(c.Env,
		core.EnvVar{Name: "PET_NNODES", Value: fmt.Sprint(*job.Spec.Trainer.NumNodes)},
		core.EnvVar{Name: "PET_NPROC_PER_NODE", Value: job.Spec.Trainer.NumProcPerNode.String()},
		core.EnvVar{Name: "PET_NODE_RANK", ValueFrom: &core.EnvVarSource{FieldRef: &core.ObjectFieldSelector{FieldPath: indexField}}},
		core.EnvVar{Name: "PET_MASTER_ADDR", Value: name + "-0." + job.Name},
		core.EnvVar{Name: "PET_MASTER_PORT", Value: "29500"})
	return pod{c, name + "-%d." + job.Name}
}

// TestManifests runs the pods of each manifest, two with two ranks each.
func TestManifests(t *testing.T) {
	testkit.Long(t)
	programs := t.TempDir()
	build(t, "../..", "go", "build", "-o", programs+"/", "./cmd/golaunch", "./test/hosts/worker")
	if err := os.Rename(filepath.Join(programs, "worker"), filepath.Join(programs, "train")); err != nil {
		t.Fatal(err)
	}
	secrets := t.TempDir()
	if err := os.WriteFile(filepath.Join(secrets, "token"), []byte("0123456789abcdef0123456789abcdef"), 0o400); err != nil {
		t.Fatal(err)
	}
	for file, podOf := range map[string]func(m manifests) pod{
		"job.yaml": func(m manifests) pod {
			if m.Service.Name != m.Job.Spec.Template.Spec.Subdomain || m.Service.Spec.Selector["job-name"] != m.Job.Name {
				t.Errorf("the Service %q selects %v, the Job %q uses the subdomain %q", m.Service.Name, m.Service.Spec.Selector, m.Job.Name, m.Job.Spec.Template.Spec.Subdomain)
			}
			return pod{m.Job.Spec.Template.Spec.Containers[0], m.Job.Name + "-%d." + m.Service.Name}
		},
		"jobset.yaml": func(m manifests) pod {
			node := m.JobSet.Spec.ReplicatedJobs[0]
			return pod{node.Template.Spec.Template.Spec.Containers[0], fmt.Sprintf("%s-%s-0-%%d.%[1]s", m.JobSet.Name, node.Name)}
		},
		"trainer.yaml": trainerPod,
	} {
		t.Run(file, func(t *testing.T) {
			p := podOf(read(t, file))
			net := netns.New(t, 2, 1)
			var names strings.Builder
			for i, h := range net.Hosts {
				fmt.Fprintf(&names, "%s "+p.name+"\n", h.Addr(0), i)
			}
			dns := filepath.Join(t.TempDir(), "hosts")
			if err := os.WriteFile(dns, []byte(names.String()), 0o600); err != nil {
				t.Fatal(err)
			}
			checkpoints := t.TempDir()
			var pods []*exec.Cmd
			outputs := make([]bytes.Buffer, len(net.Hosts))
			for i, h := range net.Hosts {
				args := append(append([]string{}, p.Command...), p.Args...)
				args[len(args)-1] = checkpoints // where the volume would be
				cmd := exec.Command("unshare", append([]string{"--mount", "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, dns}, append(args, "-steps", "30")...)...)
				cmd.Env = append(os.Environ(), append(p.environment(t, i, secrets), "GODDP_DEVICE=cpu", "PATH="+programs+":"+os.Getenv("PATH"))...)
				cmd.Stdout, cmd.Stderr = &outputs[i], &outputs[i]
				if err := h.Start(cmd); err != nil {
					t.Fatal(err)
				}
				pods = append(pods, cmd)
			}
			ended := map[string]int{}
			for i, cmd := range pods {
				if err := cmd.Wait(); err != nil {
					t.Errorf("pod %d: %v", i, err)
				}
				for _, found := range regexp.MustCompile(`of 4 .* ends at (step 30: params sha256 \w+)`).FindAllStringSubmatch(outputs[i].String(), -1) {
					ended[found[1]]++
				}
			}
			if len(ended) != 1 || strings.Count(fmt.Sprint(ended), ":4]") != 1 {
				t.Errorf("4 ranks ended at %v:\n%s\n%s", ended, &outputs[0], &outputs[1])
			}
		})
	}
}

// The pods of each manifest mount the volume that checkpoints.yaml claims.
func TestPodsMountTheClaim(t *testing.T) {
	claim := read(t, "checkpoints.yaml").PersistentVolumeClaim.Name
	for file, podOf := range map[string]func(m manifests) core.PodSpec{
		"job.yaml":    func(m manifests) core.PodSpec { return m.Job.Spec.Template.Spec },
		"jobset.yaml": func(m manifests) core.PodSpec { return m.JobSet.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec },
		"trainer.yaml": func(m manifests) core.PodSpec {
			return m.ClusterTrainingRuntime.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
		},
	} {
		var claims []string
		for _, v := range podOf(read(t, file)).Volumes {
			if v.PersistentVolumeClaim != nil {
				claims = append(claims, v.PersistentVolumeClaim.ClaimName)
			}
		}
		if len(claims) != 1 || claims[0] != claim {
			t.Errorf("the pods of %s mount the claims %q, want %q", file, claims, claim)
		}
	}
}

// TestDockerfile runs the commands by which the Dockerfile builds the programs, and starts one of them. It builds no image.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	program := regexp.MustCompile(`ARG PROGRAM=(\S+)`).FindSubmatch(text)
	commands := regexp.MustCompile(`(?m)^RUN (go build .*)$`).FindAllSubmatch(text, -1)
	if program == nil || len(commands) != 2 {
		t.Fatalf("the Dockerfile has the program %q and %d builds, want 2", program, len(commands))
	}
	t.Setenv("PROGRAM", string(program[1]))
	for _, c := range commands {
		build(t, "../..", "sh", "-c", strings.ReplaceAll(string(c[1]), "/out/", out+"/"))
	}
	for _, name := range []string{"golaunch", "golaunch-etcd", "goddp", "train"} {
		if _, err := os.Stat(filepath.Join(out, name)); err != nil {
			t.Error(err)
		}
	}
	if text, err := exec.Command(filepath.Join(out, "golaunch"), "--version").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, text)
	}
}

func build(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, text)
	}
}
