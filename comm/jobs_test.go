package comm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/store"
	"github.com/goddp/goddp/internal/testkit"
)

// The test program add sums the GODDP_TEST_NUMBER of all ranks.
func add(ctx context.Context, pg *comm.ProcessGroup) error {
	var number float32
	fmt.Sscan(os.Getenv("GODDP_TEST_NUMBER"), &number)
	x := vec(number)
	if err := pg.AllReduce(x, comm.Sum).Wait(ctx); err != nil {
		return err
	}
	fmt.Printf("sum %v\n", vals(x)[0])
	return nil
}

// jobs starts the ranks of several jobs. The store of every job has the same address.
type jobs struct {
	t    *testing.T
	addr string
	vars []string
}

func newJobs(t *testing.T) *jobs {
	port, addr := testkit.Port(t)
	return &jobs{t, addr, []string{"MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", port)}}
}

// start starts a rank of program add.
func (j *jobs) start(rank, size int, vars ...string) *testkit.Process {
	return testkit.Start(j.t, j.rank(rank, size, vars...))
}

// rank returns the command of a rank. The words of GODDP_TEST_ARGS become its arguments.
func (j *jobs) rank(rank, size int, vars ...string) *exec.Cmd {
	cmd := worker(j.t, "add", append(append(j.vars, fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", size)), vars...)...)
	for _, v := range vars {
		if args, ok := strings.CutPrefix(v, "GODDP_TEST_ARGS="); ok {
			cmd.Args = append(cmd.Args, strings.Fields(args)...)
		}
	}
	return cmd
}

// awaitKey waits until the store exists and holds a key.
func (j *jobs) awaitKey(key string) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), testkit.Soon)
	defer cancel()
	kv, err := store.Dial(ctx, j.addr, nil)
	if err == nil {
		defer kv.Close()
		err = kv.Wait(ctx, key)
	}
	if err != nil {
		j.t.Fatal(err)
	}
}

// expectEnd waits until a rank has ended. The rank must have failed, and its standard error
// must contain all of wants.
func (j *jobs) expectEnd(p *testkit.Process, who string, wants ...string) {
	j.t.Helper()
	if p.Wait() == 0 {
		j.t.Errorf("%s ended well, with %q", who, p.Stdout())
	}
	for _, want := range wants {
		if !strings.Contains(p.Stderr(), want) {
			j.t.Errorf("%s does not say %q:\n%s", who, want, p.Stderr())
		}
	}
}

func (j *jobs) expectSum(want string, ranks ...*testkit.Process) {
	j.t.Helper()
	for r, p := range ranks {
		if code := p.Wait(); code != 0 || p.Stdout() != "sum "+want+"\n" {
			j.t.Errorf("rank %d: exit code %d, %q, want sum %s", r, code, p.Stdout(), want)
		}
	}
}

func named(p *testkit.Process) string { return fmt.Sprintf("process %d on ", p.Cmd.Process.Pid) }

// Two jobs at one address do not mix. The second job is refused with an error that says how it
// differs from the first job, and the first job succeeds.
func TestTwoJobsOnOnePort(t *testing.T) {
	testkit.Long(t)
	for name, c := range map[string]struct {
		a, b  string
		bSize int
		wants []string
	}{
		"job ids":    {"GODDP_JOB_ID=first", "GODDP_JOB_ID=second", 2, []string{`job id "second" here, "first" there`, "GODDP_JOB_ID"}},
		"run ids":    {"TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RUN_ID=7", 2, []string{`job id "7" here, none there`, "GODDP_JOB_ID"}},
		"arguments":  {"", "GODDP_TEST_ARGS=--rate 2", 2, []string{"arguments [--rate 2] here, [] there", "GODDP_JOB_ID"}},
		"WORLD_SIZE": {"", "", 3, []string{"WORLD_SIZE is 3 here and 2 in process ", "set the same on all ranks; or, if these are two jobs, give each its own MASTER_PORT"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJobs(t)
			a0 := j.start(0, 2, "GODDP_TEST_NUMBER=1", c.a)
			j.awaitKey("goddp/0/groups/0")
			j.expectEnd(j.start(0, c.bSize, c.b), "B0", "has the port")
			j.expectEnd(j.start(1, c.bSize, c.b), "B1", append(c.wants, named(a0))...)
			j.expectSum("3", a0, j.start(1, 2, "GODDP_TEST_NUMBER=2", c.a))
		})
	}
}

// Two jobs with the same program, arguments and size use one address. If one process of each job says that it is rank 1,
// neither of the two joins, and the errors of all ranks name both.
func TestTwoProcessesOfOneRankBothFail(t *testing.T) {
	testkit.Long(t)
	j := newJobs(t)
	a0 := j.start(0, 3)
	j.awaitKey("goddp/0/groups/0")
	b1 := j.start(1, 3)
	j.awaitKey("goddp/0/groups/1")
	a1 := j.start(1, 3)
	for who, p := range map[string]*testkit.Process{"A0": a0, "A1": a1, "B1": b1} {
		j.expectEnd(p, who, "two processes say that they are rank 1", "GODDP_JOB_ID", named(a1), named(b1))
	}
}

// A process of another user on this host cannot join a job.
func TestProcessOfAnotherUserIsKeptOut(t *testing.T) {
	testkit.Long(t)
	j := newJobs(t)
	r0 := j.start(0, 2, "GODDP_TEST_NUMBER=1")
	j.awaitKey("goddp/0/groups/0")
	j.expectEnd(testkit.Start(t, testkit.AsUser(t, j.rank(1, 2))), "a stranger that came as rank 1 first", "GODDP_TOKEN_FILE")
	j.expectSum("2", r0, j.start(1, 2, "GODDP_TEST_NUMBER=1"))
}

// If other hosts can reach the job's store, a job without a secret fails at once on every rank, with
// an error that says what to do.
func TestExposedJobWithoutASecretFails(t *testing.T) {
	port, _ := testkit.Port(t)
	for _, w := range []comm.World{{LocalSize: 1, MasterAddr: "192.0.2.1"}, {MasterAddr: "0.0.0.0"}} {
		for w.Rank = range 2 {
			w.Size, w.MasterPort = 2, port
			_, err := comm.Init(t.Context(), &comm.Options{World: &w, Timeout: time.Hour})
			if text := fmt.Sprint(err); !strings.Contains(text, "GODDP_TOKEN_FILE") || !strings.Contains(text, "GODDP_INSECURE=1") {
				t.Errorf("%+v: %v", w, err)
			}
		}
	}
}

// Ranks without the job's secret are kept out.
func TestRanksWithoutTheSecretAreKeptOut(t *testing.T) {
	testkit.Long(t)
	path := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(path, []byte("the secret of this job"), 0o600); err != nil {
		t.Fatal(err)
	}
	j := newJobs(t)
	right := []string{"GODDP_TOKEN_FILE=" + path, "GODDP_TEST_NUMBER=3"}
	r0 := j.start(0, 2, right...)
	j.awaitKey("goddp/0/groups/0")
	j.expectEnd(j.start(1, 2), "without a secret", "has a secret, and this process has none", "GODDP_TOKEN_FILE")
	j.expectSum("6", r0, j.start(1, 2, right...))
}

// A job works with a store that lacks the handshake, as PyTorch's store does. If the job has no secret, one rank logs
// one warning.
func TestStoreWithoutHandshakeIsUsedWithOneWarning(t *testing.T) {
	server, err := store.Listen("", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	at := newProxy(t, server.Addr(), func(b []byte) []byte {
		return bytes.ReplaceAll(b, []byte("goddp/handshake"), []byte("other/handshake"))
	}).ln.Addr().(*net.TCPAddr)
	join := func() (string, error) {
		var log lockedBuffer
		var errs [2]error
		var ranks sync.WaitGroup
		for r := range errs {
			ranks.Go(func() {
				pg, err := comm.Init(t.Context(), &comm.Options{
					World:  &comm.World{Rank: r, Size: 2, MasterAddr: "127.0.0.1", MasterPort: at.Port, AgentStore: true},
					Device: cpu.New(nil), Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil)),
				})
				if err == nil {
					x := vec(1)
					err = errors.Join(pg.AllReduce(x, comm.Sum).Wait(t.Context()), pg.Close(), expect(x, 2))
				}
				errs[r] = err
			})
		}
		ranks.Wait()
		return log.String(), errors.Join(errs[:]...)
	}
	if log, err := join(); err != nil || strings.Count(log, "GODDP_TOKEN_FILE") != 1 || strings.Count(log, "WARN") != 1 {
		t.Errorf("without a secret: %v, and the log\n%s", err, log)
	}
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("the secret of this job"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GODDP_TOKEN_FILE", file)
	if log, err := join(); err != nil || log != "" {
		t.Errorf("with a secret: %v, and the log\n%s", err, log)
	}
	t.Setenv("GODDP_STORE", at.String())
	if _, err := join(); !errors.As(err, new(*store.HandshakeError)) || !strings.Contains(fmt.Sprint(err), "is not a goddp store") {
		t.Errorf("where golaunch's store has to be: %v", err)
	}
}
