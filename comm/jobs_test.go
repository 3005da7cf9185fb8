package comm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/store"
)

func init() {
	// The test program add sums the GODDP_TEST_NUMBER of all ranks. If GODDP_TEST_GO names a
	// file, each rank first waits until that file exists.
	workers["add"] = func(ctx context.Context) error {
		pg, err := comm.Init(ctx, &comm.Options{Timeout: time.Minute})
		if err != nil {
			return err
		}
		defer pg.Close()
		fmt.Println("joined")
		if err := pg.Store().Set(ctx, fmt.Sprint("joined/", pg.Rank()), nil); err != nil {
			return err
		}
		start := time.Now()
		for path := os.Getenv("GODDP_TEST_GO"); path != ""; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(path); err == nil {
				break
			}
			if time.Since(start) > time.Minute {
				return errors.New("the file does not come")
			}
		}
		var number float32
		fmt.Sscan(os.Getenv("GODDP_TEST_NUMBER"), &number)
		x := vec(number)
		if err := pg.AllReduce(x, comm.Sum).Wait(ctx); err != nil {
			return err
		}
		fmt.Printf("sum %v\n", vals(x)[0])
		return nil
	}
	// The test program meddle tries to end a job: it writes to the store at the address
	// GODDP_TEST_STORE as if a rank had failed.
	workers["meddle"] = func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second) // Dial retries until then
		defer cancel()
		kv, err := store.Dial(ctx, os.Getenv("GODDP_TEST_STORE"), nil)
		if err != nil {
			return err
		}
		for _, key := range []string{"goddp/0/group/1/failure", "goddp/0/group/1/backend/failed"} {
			if err := kv.Set(ctx, key, []byte(`{"Rank":0,"Text":"rank 0 did it"}`)); err != nil {
				return err
			}
		}
		return nil
	}
}

// jobs starts the ranks of several jobs. The store of every job has the same address.
type jobs struct {
	t    *testing.T
	port int
	addr string
}

func newJobs(t *testing.T) *jobs {
	j := &jobs{t: t}
	j.port, j.addr = testkit.Port(t)
	return j
}

func (j *jobs) vars(rank, size int, more ...string) []string {
	return append([]string{
		fmt.Sprint("RANK=", rank), fmt.Sprint("WORLD_SIZE=", size), "MASTER_ADDR=127.0.0.1", fmt.Sprint("MASTER_PORT=", j.port),
	}, more...)
}

func (j *jobs) start(rank, size int, more ...string) *process {
	return start(j.t, "add", j.vars(rank, size, more...)...)
}

// awaitKey waits until the store exists and holds a key.
func (j *jobs) awaitKey(key string) {
	j.t.Helper()
	ctx, cancel := context.WithTimeout(j.t.Context(), 30*time.Second)
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
func (p *process) expectEnd(t *testing.T, who string, wants ...string) {
	t.Helper()
	if err := p.cmd.Wait(); err == nil {
		t.Errorf("%s ended well, with %q", who, &p.out)
	}
	for _, want := range wants {
		if !strings.Contains(p.err.String(), want) {
			t.Errorf("%s does not say %q:\n%s", who, want, &p.err)
		}
	}
}

func (p *process) expectSum(t *testing.T, who, want string) {
	t.Helper()
	if err := p.cmd.Wait(); err != nil || p.out.String() != "joined\nsum "+want+"\n" {
		t.Errorf("%s: %v, %q, want sum %s\n%s", who, err, &p.out, want, &p.err)
	}
}

// Two jobs at one address do not mix. The second job is refused with an error that says how it
// differs from the first job, and the first job succeeds.
func TestTwoJobsOnOnePort(t *testing.T) {
	for name, c := range map[string]struct {
		a, b  []string
		bSize int
		wants []string
	}{
		"job ids":    {a: []string{"GODDP_JOB_ID=first"}, b: []string{"GODDP_JOB_ID=second"}, bSize: 2, wants: []string{`job id "second" here, "first" there`, "GODDP_JOB_ID"}},
		"run ids":    {a: []string{"TORCHELASTIC_RUN_ID=none"}, b: []string{"TORCHELASTIC_RUN_ID=7"}, bSize: 2, wants: []string{`job id "7" here, none there`, "GODDP_JOB_ID"}},
		"arguments":  {b: []string{"GODDP_TEST_ARGS=--rate 2"}, bSize: 2, wants: []string{"arguments [--rate 2] here, [] there", "GODDP_JOB_ID"}},
		"WORLD_SIZE": {bSize: 3, wants: []string{"WORLD_SIZE is 3 here and 2 in process ", "set the same on all ranks; or, if these are two jobs, give each its own MASTER_PORT"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJobs(t)
			number := func(n int, vars []string) []string {
				return append([]string{fmt.Sprint("GODDP_TEST_NUMBER=", n)}, vars...)
			}
			a0 := j.start(0, 2, number(1, c.a)...)
			j.awaitKey("goddp/0/groups/0")
			j.start(0, c.bSize, number(100, c.b)...).expectEnd(t, "B0", "has the port")
			start := time.Now()
			j.start(1, c.bSize, number(100, c.b)...).expectEnd(t, "B1",
				append(c.wants, fmt.Sprintf("process %d on ", a0.cmd.Process.Pid))...)
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("B1 was refused after %v", took)
			}
			a1 := j.start(1, 2, number(2, c.a)...)
			a0.expectSum(t, "A0", "3")
			a1.expectSum(t, "A1", "3")
		})
	}
}

// Two jobs with the same program, arguments and size use one address. If one process of each
// job says that it is rank 1, neither of the two processes joins, and the errors of all ranks
// name both processes.
func TestTwoProcessesOfOneRankBothFail(t *testing.T) {
	j := newJobs(t)
	a0 := j.start(0, 3)
	j.awaitKey("goddp/0/groups/0")
	j.start(0, 3).expectEnd(t, "B0", "has the port")
	b1 := j.start(1, 3)
	j.awaitKey("goddp/0/groups/1")
	a1 := j.start(1, 3)
	both := []string{
		"two processes say that they are rank 1", "GODDP_JOB_ID",
		fmt.Sprintf("process %d on ", a1.cmd.Process.Pid), fmt.Sprintf("process %d on ", b1.cmd.Process.Pid),
	}
	a1.expectEnd(t, "A1", both...)
	b1.expectEnd(t, "B1", both...)
	a0.expectEnd(t, "A0", both...)
}

// If a second process with the same rank starts after the group was made, only the second
// process fails, and it fails at once.
func TestLateProcessOfARankFailsAlone(t *testing.T) {
	j := newJobs(t)
	file := filepath.Join(t.TempDir(), "go")
	vars := []string{"GODDP_TEST_NUMBER=5", "GODDP_TEST_GO=" + file}
	ranks := []*process{j.start(0, 2, vars...), j.start(1, 2, vars...)}
	j.awaitKey("goddp/0/group/1/joined/0")
	j.awaitKey("goddp/0/group/1/joined/1")
	start := time.Now()
	j.start(1, 2, vars...).expectEnd(t, "the second rank 1", "two processes say that they are rank 1", "GODDP_JOB_ID",
		fmt.Sprintf("process %d on ", ranks[1].cmd.Process.Pid))
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("it was refused after %v", took)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for r, p := range ranks {
		p.expectSum(t, fmt.Sprint("rank ", r), "10")
	}
}

// A process of another user on this host can neither join a job nor end it.
func TestProcessOfAnotherUserIsKeptOut(t *testing.T) {
	j := newJobs(t)
	file := filepath.Join(t.TempDir(), "go")
	vars := []string{"GODDP_TEST_NUMBER=1", "GODDP_TEST_GO=" + file}
	stranger := func(mode string) *process {
		p := &process{}
		p.cmd = testkit.AsUser(t, exec.CommandContext(t.Context(), os.Args[0]))
		p.cmd.Env = testkit.Env(append(j.vars(1, 2), workerMode+"="+mode, "GODDP_TEST_NUMBER=1000", "GODDP_TEST_STORE="+j.addr)...)
		p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
		if err := p.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return p
	}
	r0 := j.start(0, 2, vars...)
	j.awaitKey("goddp/0/groups/0")
	first := stranger("add")
	first.expectEnd(t, "a stranger that came as rank 1 first", "GODDP_TOKEN_FILE")
	stranger("meddle").expectEnd(t, "a stranger that meddles with the join")
	r1 := j.start(1, 2, vars...)
	j.awaitKey("goddp/0/group/1/joined/0")
	j.awaitKey("goddp/0/group/1/joined/1")
	stranger("meddle").expectEnd(t, "a stranger that meddles with the job")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r0.expectSum(t, "rank 0", "2")
	r1.expectSum(t, "rank 1", "2")
}

// If other hosts can reach the job's store, a job without a secret fails at once on every rank, with
// an error that says what to do.
func TestExposedJobWithoutASecretFails(t *testing.T) {
	for name, vars := range map[string][]string{
		"several hosts": {"LOCAL_WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=192.0.2.1"},
		"every address": {"MASTER_ADDR=0.0.0.0"},
	} {
		j := newJobs(t)
		for rank := range 2 {
			start := time.Now()
			j.start(rank, 2, vars...).expectEnd(t, fmt.Sprintf("%s, rank %d", name, rank), "GODDP_TOKEN_FILE", "GODDP_INSECURE=1")
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("%s, rank %d: it took %v", name, rank, took)
			}
		}
	}
}

// Ranks with another secret, or without one, are kept out of a job with a secret.
func TestRanksWithoutTheSecretAreKeptOut(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return "GODDP_TOKEN_FILE=" + path
	}
	secret := "the secret of this job"
	j := newJobs(t)
	right := []string{file("right", secret), "GODDP_TEST_NUMBER=3"}
	r0 := j.start(0, 2, right...)
	j.awaitKey("goddp/0/groups/0")
	j.start(1, 2).expectEnd(t, "without a secret", "has a secret, and this process has none", "GODDP_TOKEN_FILE")
	wrong := j.start(1, 2, file("wrong", "the secret of another job"))
	wrong.expectEnd(t, "with a wrong secret", "has another secret than this process", "GODDP_TOKEN_FILE")
	r1 := j.start(1, 2, right...)
	r0.expectSum(t, "rank 0", "6")
	r1.expectSum(t, "rank 1", "6")
	for _, p := range []*process{r0, r1, wrong} {
		if text := p.out.String() + p.err.String(); strings.Contains(text, secret) || strings.Contains(text, "the secret of another job") {
			t.Errorf("a secret is told:\n%s", text)
		}
	}
}

// plainStore returns the address of a store that lacks goddp's handshake, as PyTorch's store
// does. It is goddp's own store behind a proxy that changes the handshake's key in every
// message.
func plainStore(t *testing.T) *net.TCPAddr {
	server, err := store.Listen("", nil)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		ln.Close()
		server.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", server.Addr())
			if err != nil {
				in.Close()
				continue
			}
			wg.Go(func() {
				io.Copy(in, out)
				in.Close()
			})
			wg.Go(func() {
				defer out.Close()
				b := make([]byte, 64<<10)
				for {
					n, err := in.Read(b)
					if err != nil {
						return
					}
					out.Write(bytes.ReplaceAll(b[:n], []byte("goddp/handshake"), []byte("other/handshake")))
				}
			})
		}
	})
	return ln.Addr().(*net.TCPAddr)
}

// A job works with a store that lacks the handshake. If the job has no secret, one rank logs
// one warning.
func TestStoreWithoutHandshakeIsUsedWithOneWarning(t *testing.T) {
	at := plainStore(t)
	join := func() (string, error) {
		var log lockedBuffer
		var errs [2]error
		var ranks sync.WaitGroup
		for r := range errs {
			ranks.Go(func() {
				w := comm.World{Rank: r, Size: 2, MasterAddr: "127.0.0.1", MasterPort: at.Port, AgentStore: true}
				pg, err := comm.Init(t.Context(), &comm.Options{World: &w, Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(&log, nil))})
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
	if _, err := join(); !errors.As(err, new(*store.HandshakeError)) || !strings.Contains(fmt.Sprint(err), "not goddp's") {
		t.Errorf("where golaunch's store has to be: %v", err)
	}
}
