package smoke

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/checkpoint"
	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/ddp"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/nn"
	"github.com/goddp/goddp/optim"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(){
		"train": func() { comm.Main(train) },
		"fail":  func() { comm.Main(fail) },
	})
}

// train is a rank that trains for os.Args[2] steps, or until it is asked to stop, and saves its state in the folder
// os.Args[1]. It goes on from there.
func train(ctx context.Context) (err error) {
	steps, err := strconv.Atoi(os.Args[2])
	if err != nil {
		return err
	}
	pg, err := comm.Init(ctx, nil)
	if err != nil {
		return err
	}
	model, err := ddp.New(nn.Linear(2, 1, nil), pg, nil)
	if err != nil {
		return err
	}
	opt, err := optim.NewSGD(model.Parameters(), &optim.SGDOptions{LR: 0.01, Momentum: 0.9})
	if err != nil {
		return err
	}
	saver, err := checkpoint.Open(ctx, pg, os.Args[1], nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, saver.Close()) }()
	state := checkpoint.State{Model: model, Optimizers: []optim.Optimizer{opt}}
	step, err := saver.Resume(ctx, state)
	if err != nil {
		return err
	}
	fmt.Printf("rank %d of %d, pid %d, begins at step %d\n", pg.Rank(), pg.Size(), os.Getpid(), step)
	for first := step; step < steps && !model.Stopping(); step++ {
		// The gradient of the weights is the average of the ranks' inputs.
		x := autograd.FromSlice(pg.Device(), []float32{float32(pg.Rank() + 1), float32(step%7) * 10}, 1, 2)
		if err := autograd.Sum(model.Forward(x)).Backward(nil); err != nil {
			return err
		}
		if step == first {
			gradient, err := model.Parameters()[0].Var().Grad().Read(ctx)
			if err != nil {
				return err
			}
			fmt.Printf("rank %d has the gradient %v\n", pg.Rank(), gradient)
		}
		if err := opt.Step(); err != nil {
			return err
		}
		opt.ZeroGrad()
		time.Sleep(5 * time.Millisecond)
	}
	if err := saver.Save(ctx, step, state); err != nil {
		return err
	}
	weights, err := model.Parameters()[0].Var().Read(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("rank %d ends at step %d with %v\n", pg.Rank(), step, weights)
	return nil
}

// fail is train whose rank 1 fails in the first attempt.
func fail(ctx context.Context) error {
	if os.Getenv("RANK") == "1" && os.Getenv("TORCHELASTIC_RESTART_COUNT") == "0" {
		return errors.New("out of luck")
	}
	return train(ctx)
}

// endless is a number of steps that no test waits for.
const endless = 1 << 30

// golaunch returns the command of golaunch with a program of this binary, a folder for its state and a number of steps.
func golaunch(t *testing.T, program, folder string, steps int, flags ...string) *exec.Cmd {
	t.Helper()
	bin := testkit.Build(t, "cmd/golaunch")
	worker := testkit.Self(t, program)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "golaunch"), append(flags, worker.Path, folder, strconv.Itoa(steps))...)
	cmd.Env = append(worker.Env, "GODDP_DEVICE=cpu", "TMPDIR="+t.TempDir())
	return cmd
}

// end returns the step at which all ranks of a job ended, and their weights. It checks golaunch's exit code.
func end(t *testing.T, p *testkit.Process, code, ranks int) (step int, weights string) {
	t.Helper()
	if got := p.Wait(); got != code {
		t.Fatalf("exit code %d, want %d", got, code)
	}
	found := regexp.MustCompile(`rank \d ends at step (\d+) with (.*)`).FindAllStringSubmatch(p.Stdout(), -1)
	if len(found) != ranks {
		t.Fatalf("%d ranks end, want %d", len(found), ranks)
	}
	for _, f := range found {
		if f[1] != found[0][1] || f[2] != found[0][2] {
			t.Errorf("%q, and %q", f[0], found[0][0])
		}
	}
	step, _ = strconv.Atoi(found[0][1])
	return step, found[0][2]
}

func TestLaunch(t *testing.T) {
	p := testkit.Start(t, golaunch(t, "train", t.TempDir(), 3, "--nproc-per-node=2"))
	if step, _ := end(t, p, 0, 2); step != 3 {
		t.Errorf("the ranks end at step %d, want 3", step)
	}
	p.Expect(`rank [01] has the gradient \[1.5 0\]`, 2)
}

// A rank is killed. The exit code and the report say so, and nothing is left running.
func TestKill(t *testing.T) {
	p := testkit.Start(t, golaunch(t, "train", t.TempDir(), endless, "--nproc-per-node=2"))
	p.Await("has the gradient", 2)
	pids := map[string]int{}
	for _, f := range regexp.MustCompile(`rank (\d) of 2, pid (\d+),`).FindAllStringSubmatch(p.Stdout(), -1) {
		pids[f[1]], _ = strconv.Atoi(f[2])
	}
	if err := syscall.Kill(pids["1"], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.Wait(); code != 128+int(syscall.SIGKILL) {
		t.Errorf("exit code %d", code)
	}
	p.Expect(`^  rank      : 1 \(local_rank: 1\)$`, 1)
	p.Expect(fmt.Sprintf(`^  exitcode  : -9 \(pid: %d\), killed by SIGKILL$`, pids["1"]), 1)
	for rank, pid := range pids {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("rank %s is left: %v", rank, err)
		}
	}
}

// A job that gets SIGTERM saves the step at which it is. The next one goes on there, and ends as one that nothing happened to.
func TestStopAndResume(t *testing.T) {
	folder := t.TempDir()
	first := testkit.Start(t, golaunch(t, "train", folder, endless, "--nproc-per-node=2"))
	first.Await("has the gradient", 2)
	first.Signal(syscall.SIGTERM)
	step, _ := end(t, first, 128+int(syscall.SIGTERM), 2)
	if step == 0 {
		t.Error("the ranks stopped before the first step")
	}
	second := testkit.Start(t, golaunch(t, "train", folder, step+5, "--nproc-per-node=2"))
	_, got := end(t, second, 0, 2)
	second.Expect(fmt.Sprintf("rank [01] of 2, .* begins at step %d$", step), 2)
	undisturbed := testkit.Start(t, golaunch(t, "train", t.TempDir(), step+5, "--nproc-per-node=2"))
	if _, want := end(t, undisturbed, 0, 2); got != want {
		t.Errorf("stopped at step %d and resumed, the weights are %s, want %s", step, got, want)
	}
}

// A rank fails in the first attempt. golaunch restarts the job, which succeeds.
func TestRestart(t *testing.T) {
	p := testkit.Start(t, golaunch(t, "fail", t.TempDir(), 3, "--nproc-per-node=2", "--max-restarts=1"))
	end(t, p, 0, 2)
	p.Expect("golaunch: restart 1 of 1: .* rank 1 .*out of luck", 1)
}

// Two golaunch processes, which know the host of the rendezvous by different names, start one job.
func TestTwoNodes(t *testing.T) {
	port, _ := testkit.Port(t)
	token, folder := filepath.Join(t.TempDir(), "token"), t.TempDir()
	if err := os.WriteFile(token, []byte("the nodes' common secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	var nodes []*testkit.Process
	for node, host := range []string{"localhost", "127.0.0.1"} {
		cmd := golaunch(t, "train", folder, 3, "--nnodes=2", "--nproc-per-node=2", "--rdzv-backend=c10d", "--token-file="+token,
			fmt.Sprintf("--rdzv-endpoint=%s:%d", host, port))
		cmd.Env = append(cmd.Env, fmt.Sprint("GODDP_HOST_ID=", node)) // so the ranks of the nodes do not share memory
		nodes = append(nodes, testkit.Start(t, cmd))
	}
	var weights [2]string
	for node, p := range nodes {
		_, weights[node] = end(t, p, 0, 2)
		p.Expect(`rank [0-3] has the gradient \[2.5 0\]`, 2)
	}
	if weights[0] != weights[1] {
		t.Errorf("the nodes end with %s and %s", weights[0], weights[1])
	}
}
