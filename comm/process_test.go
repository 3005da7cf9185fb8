package comm_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/launcher"
)

// workerMode is an environment variable. If it holds the name of a program in workers, this
// test binary runs that program instead of the tests.
const workerMode = "GODDP_TEST_WORKER"

// workers holds programs by name. Every rank of a test job is a process that runs the same
// program.
var workers = map[string]func(context.Context) error{
	// The test program sum sums the ranks' numbers, twice, because a process may call Init
	// again after Close.
	"sum": func(ctx context.Context) error {
		for range 2 {
			pg, err := comm.Init(ctx, nil)
			if err != nil {
				return err
			}
			x := vec(float32(pg.Rank()))
			if err := pg.AllReduce(x, comm.Sum).Wait(ctx); err != nil {
				return err
			}
			if err := pg.Close(); err != nil {
				return err
			}
			fmt.Printf("rank %d of %d: sum %v\n", pg.Rank(), pg.Size(), vals(x)[0])
		}
		return nil
	},
	// In the test program kill, the rank that GODDP_TEST_VICTIM names kills itself. The errors
	// of the other ranks must name that rank.
	"kill": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err != nil {
			return err
		}
		defer pg.Close()
		// The victim may die before the other ranks have left this barrier.
		err = pg.Barrier().Wait(ctx)
		if strconv.Itoa(pg.Rank()) == os.Getenv("GODDP_TEST_VICTIM") {
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		if err == nil {
			err = pg.AllReduce(vec(1), comm.Sum).Wait(ctx)
		}
		if !errors.Is(err, comm.ErrPeerLost) {
			return fmt.Errorf("got %v, want ErrPeerLost", err)
		}
		fmt.Println(err)
		return nil
	},
	// In the test program leave, rank 1 returns an error while the other ranks wait for rank 1.
	"leave": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err != nil {
			return err
		}
		defer pg.Close()
		if pg.Rank() == 1 {
			return errors.New("no luck")
		}
		return pg.Barrier().Wait(ctx)
	},
	// The test program leave slowly is like leave, but the launcher tells rank 1 to stop before
	// it has returned its error. In leave early, that rank has no error until then.
	"leave slowly": func(ctx context.Context) error { return closeAndWait(ctx, errors.New("no luck")) },
	"leave early":  func(ctx context.Context) error { return closeAndWait(ctx, nil) },
	// In the test program hang, rank 1 hangs, while rank 0 waits for it, fails, and leaves at once.
	"hang": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, &comm.Options{Timeout: time.Second})
		if err != nil {
			return err
		}
		defer pg.Close()
		pg.OnShutdown(func(context.Context, error) { fmt.Println("shutdown") })
		if pg.Rank() == 1 {
			select {}
		}
		return pg.Barrier().Wait(ctx)
	},
	// In the test program disagree, rank 1 alone fails, and both ranks return its error.
	"disagree": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err != nil {
			return err
		}
		defer pg.Close()
		if pg.Rank() == 1 {
			err = errors.New("no luck")
		}
		return comm.Agree(ctx, pg, err)
	},
	// In the test program overlap, rank 1 makes a call that is rejected, while the other ranks
	// wait for rank 1.
	"overlap": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, &comm.Options{Timeout: time.Hour})
		if err != nil {
			return err
		}
		defer pg.Close()
		if x := vec(1, 2, 3); pg.Rank() == 1 {
			pg.AllToAll(x, x)
		}
		return pg.Barrier().Sync(ctx)
	},
	// The test program unclosed does not close its groups. When train returns on a rank, other
	// ranks may still be in the last calls.
	"unclosed": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err != nil {
			return err
		}
		sub, err := pg.Split(ctx, pg.Rank()%2, 0)
		if err != nil {
			return err
		}
		x := vec(make([]float32, 1<<18)...)
		for range 20 {
			for _, g := range []*comm.ProcessGroup{pg, sub} {
				if err := g.AllReduce(x, comm.Sum).Wait(ctx); err != nil {
					return err
				}
			}
		}
		return nil
	},
	// In the test program gone, rank 1 exits with code 0 while the other ranks still make
	// calls.
	"gone": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err != nil {
			return err
		}
		for i := 0; ; i++ {
			if i == 5 && pg.Rank() == 1 {
				os.Exit(0)
			}
			if err := pg.AllReduce(vec(1), comm.Sum).Sync(ctx); err != nil {
				return err
			}
		}
	},
	// The test program stop runs steps until all ranks agree to stop. The rank that
	// GODDP_TEST_VICTIM names sends itself a signal. The rank that GODDP_TEST_FAIL names then
	// fails to save.
	"stop": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err != nil {
			return err
		}
		defer pg.Close()
		rank := strconv.Itoa(pg.Rank())
		for step := 0; ; step++ {
			x := vec(float32(pg.StopRequested()))
			if err := pg.AllReduce(x, comm.Max).Wait(ctx); err != nil {
				return err
			}
			if sig := syscall.Signal(vals(x)[0]); sig != 0 {
				pg.AcceptStop(sig)
				fmt.Printf("a rank stops behind step %d\n", step)
				if rank == os.Getenv("GODDP_TEST_FAIL") {
					return errors.New("no space left")
				}
				return nil
			}
			if step == 3 && rank == os.Getenv("GODDP_TEST_VICTIM") {
				if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
					return err
				}
			}
		}
	},
	// In the test program unheard, rank 0 starts a call and returns without waiting for the
	// call. Rank 1 does not join the call.
	"unheard": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err != nil {
			return err
		}
		if err := pg.Barrier().Wait(ctx); err != nil {
			return err
		}
		if pg.Rank() == 0 {
			pg.AllReduce(vec(1), comm.Sum)
		}
		return nil
	},
	// In the test program absent, the rank that GODDP_TEST_VICTIM names ends before Init. The
	// other ranks print the error of Init. If rank 0 is not the victim, rank 0 alone has a
	// short timeout: rank 0 hosts the store, and the other ranks must get the error from the
	// store before the store ends with rank 0.
	"absent": func(ctx context.Context) error {
		rank, victim := os.Getenv("RANK"), os.Getenv("GODDP_TEST_VICTIM")
		if rank == victim {
			return nil
		}
		timeout := 5 * time.Second
		if rank != "0" && victim != "0" {
			timeout = time.Hour
		}
		_, err := comm.Init(ctx, &comm.Options{Timeout: timeout})
		if !errors.Is(err, comm.ErrTimeout) {
			return fmt.Errorf("got %v, want ErrTimeout", err)
		}
		fmt.Println(err)
		return nil
	},
	"subgroup":  onGroup(failInASubgroup),
	"whole":     onGroup(failOutsideASubgroup),
	"deaf":      deaf,
	"again":     again,
	"suspended": suspended,
	"starved":   starved,
	"error":     func(context.Context) error { return errors.New("no luck") },
	"panic":     func(context.Context) error { panic("a mistake") },
	"panics": func(context.Context) error {
		defer func() { panic("another") }()
		firstMistake()
		return nil
	},
	"wait": func(ctx context.Context) error {
		fmt.Println("waiting")
		<-ctx.Done()
		return context.Cause(ctx)
	},
}

// onGroup returns a program that runs f on a group. The group has an error mode in which a
// failure does not end the process.
func onGroup(f func(*comm.ProcessGroup) error) func(context.Context) error {
	return func(ctx context.Context) error {
		pg, err := comm.Init(ctx, &comm.Options{ErrorMode: comm.CleanUpOnly})
		if err != nil {
			return err
		}
		defer pg.Close()
		return f(pg)
	}
}

//go:noinline
func firstMistake() { panic("a mistake") }

// process is a process that runs a program of workers, with its output.
type process struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
}

// start starts this test binary as a process that runs the program that `mode` names. vars are
// added to its environment. The words of GODDP_TEST_ARGS become its arguments.
func start(t *testing.T, mode string, vars ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	p := &process{cmd: exec.CommandContext(ctx, os.Args[0])}
	for _, v := range vars {
		if args, ok := strings.CutPrefix(v, "GODDP_TEST_ARGS="); ok {
			p.cmd.Args = append(p.cmd.Args, strings.Fields(args)...)
		}
	}
	p.cmd.Env = append(append(os.Environ(), workerMode+"="+mode, "GODDP_FLIGHT_DIR="+t.TempDir()), vars...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return p
}

// launch runs n ranks of the program that `mode` names under the launcher, and returns their
// output. vars are added to the environment of the ranks.
func launch(t *testing.T, n int, mode string, vars ...string) (out, errs string, err error) {
	t.Helper()
	var o, e lockedBuffer
	_, err = launcher.Run(t.Context(), &launcher.Config{
		Args: []string{os.Args[0]}, Workers: n, Env: append(append(os.Environ(), workerMode+"="+mode), vars...), Stdout: &o, Stderr: &e,
	})
	return o.String(), e.String(), err
}

// startWorld starts n ranks of the program that `mode` names without a launcher, as a scheduler
// does. Rank 0 hosts the store.
func startWorld(t *testing.T, n int, mode string, vars ...string) []*process {
	t.Helper()
	port, _ := testkit.Port(t)
	ps := make([]*process, n)
	for r := range ps {
		ps[r] = start(t, mode, append(vars, fmt.Sprintf("RANK=%d", r), fmt.Sprintf("WORLD_SIZE=%d", n), "MASTER_ADDR=127.0.0.1", fmt.Sprintf("MASTER_PORT=%d", port))...)
	}
	return ps
}

// closeAndWait closes the group on rank 1 before the other ranks' barrier, and waits there for the
// end of ctx. Rank 1 then returns err, or the error of ctx if err is nil.
func closeAndWait(ctx context.Context, err error) error {
	pg, failed := comm.Init(ctx, nil)
	if failed != nil {
		return failed
	}
	defer pg.Close()
	if pg.Rank() != 1 {
		return pg.Barrier().Wait(ctx)
	}
	pg.Close()
	<-ctx.Done()
	return cmp.Or(err, ctx.Err())
}

func TestWorldOfProcesses(t *testing.T) {
	for r, p := range startWorld(t, 3, "sum") {
		if err := p.cmd.Wait(); err != nil {
			t.Errorf("rank %d: %v\n%s", r, err, &p.err)
		}
		if want := strings.Repeat(fmt.Sprintf("rank %d of 3: sum 3\n", r), 2); p.out.String() != want {
			t.Errorf("rank %d printed %q, want %q", r, &p.out, want)
		}
	}
}

func TestWorldUnderTheLauncher(t *testing.T) {
	out, errs, err := launch(t, 4, "sum")
	if err != nil {
		t.Fatalf("%v\n%s", err, errs)
	}
	for r := range 4 {
		if line := fmt.Sprintf("rank %d of 4: sum 6\n", r); strings.Count(out, line) != 2 {
			t.Errorf("%q is not there twice in\n%s", line, out)
		}
	}
}

// A failure in one group breaks the other groups also if the ranks are processes. Other tests
// cover ranks that are goroutines.
func TestFailuresOfOtherGroups(t *testing.T) {
	for _, mode := range []string{"subgroup", "whole"} {
		if _, errs, err := launch(t, 4, mode, "GODDP_FLIGHT_DIR="+t.TempDir()); err != nil {
			t.Errorf("%s: %v\n%s", mode, err, errs)
		}
	}
}

// If one rank gets a signal, the ranks agree to stop by a reduction of the program, and stop
// after the same step. The launcher counts the end of the job as a requested stop.
func TestRanksAgreeOnAStopRequestOfOneRank(t *testing.T) {
	for range 4 {
		out, errs, err := launch(t, 3, "stop", "GODDP_TEST_VICTIM=2")
		var signal *launcher.SignalError
		if !errors.As(err, &signal) || signal.Signal != syscall.SIGTERM {
			t.Fatalf("%v\n%s", err, errs)
		}
		_, line, _ := strings.Cut(out, "]: ")
		if line, _, _ = strings.Cut(line, "\n"); strings.Count(out, line+"\n") != 3 {
			t.Errorf("not all ranks stop behind one step:\n%s", out)
		}
	}
}

// If a rank fails to save during a stop, the job has failed, whether that rank ends before or
// after the other ranks.
func TestFailureDuringAStopIsAFailure(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for range 4 {
		_, errs, err := launch(t, 3, "stop", "GODDP_TEST_VICTIM=2", "GODDP_TEST_FAIL=1")
		var failure *launcher.FailureError
		if !errors.As(err, &failure) || failure.Root.Rank != 1 || failure.Root.Status.Code != 1 || len(failure.Others) > 0 {
			t.Errorf("%v\n%s", err, errs)
		}
	}
}

// If a program does not close its groups, Main closes them, and all ranks exit with code 0.
func TestMainClosesGroups(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for range 8 {
		_, errs, err := launch(t, 4, "unclosed")
		if err != nil || errs != "" {
			t.Fatalf("%v\n%s", err, errs)
		}
	}
}

// If a call fails while Main closes the groups, the process fails.
func TestMainReportsFailedCalls(t *testing.T) {
	ps := startWorld(t, 2, "unheard")
	if err := ps[1].cmd.Wait(); err != nil {
		t.Errorf("rank 1: %v\n%s", err, &ps[1].err)
	}
	if err := ps[0].cmd.Wait(); err == nil || !strings.Contains(ps[0].err.String(), "error: closing the process group: ") || !strings.Contains(ps[0].err.String(), "rank 1 left") {
		t.Errorf("rank 0: %v\n%s", err, &ps[0].err)
	}
}

// The launcher names the rank that failed as the root cause, not the ranks whose calls failed because
// of it, nor the ranks that comm.Agree gave its error. A rank that had no error before the launcher
// told it to stop is not the root cause, although its peers name it.
func TestTheLauncherBlamesTheCause(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for _, c := range []struct {
		program string
		times   int
		isRank1 bool   // whether rank 1 is the root cause
		says    string // a part of the root cause's error
	}{
		{"leave", 2, true, "no luck"},
		{"leave slowly", 1, true, "no luck"},
		{"leave early", 1, false, "rank 1 left: it closed the process group"},
		{"disagree", 8, true, "no luck"},
	} {
		for range c.times {
			_, errs, err := launch(t, 4, c.program)
			var failure *launcher.FailureError
			if !errors.As(err, &failure) {
				t.Fatalf("%s: got %v", c.program, err)
			}
			if (failure.Root.Rank == 1) != c.isRank1 || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: blamed: %v\n%s", c.program, err, errs)
			}
		}
	}
}

// A rank that hangs runs its shutdown functions, says where it hangs and ends by itself, although
// the launcher tells it to stop as soon as the rank that waited for it has failed. The launcher
// would wait longer before it kills the rank.
func TestARankThatHangsEndsItself(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	out, errs, err := launch(t, 2, "hang")
	var failure *launcher.FailureError
	if !errors.As(err, &failure) || failure.Root.Rank != 0 || len(failure.Others) != 1 || failure.Others[0].Status.Code != 1 {
		t.Fatalf("want rank 0 as the root cause, and that rank 1 exits with code 1: %v\n%s", err, errs)
	}
	if want := "[default1]: shutdown\n"; out != want {
		t.Errorf("the program printed %q, want %q", out, want)
	}
	for _, want := range []string{"Most probable: rank 1 is behind", "goroutine 1 [select (no cases)]"} {
		if !strings.Contains(errs+failure.Report(), want) {
			t.Errorf("%q is not in\n%s", want, errs)
		}
	}
}

// A rank that exited with code 0 too early does not count as failed, but the launcher's report
// names that rank first.
func TestTheLauncherNamesTheRankThatLeft(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for range 8 {
		_, _, err := launch(t, 3, "gone")
		var failure *launcher.FailureError
		if !errors.As(err, &failure) {
			t.Fatalf("got %v", err)
		}
		if report := failure.Report(); !strings.Contains(report, "Most probable: rank 1 ") || !strings.Contains(report, "exited with code 0") {
			t.Fatalf("rank 1 is not what the report begins with:\n%s", report)
		}
	}
}

// The errors of all other ranks name a rank that died, also if the dead rank hosted the store.
func TestADeadPeerIsNamed(t *testing.T) {
	for _, victim := range []int{0, 2} {
		t.Run(fmt.Sprint("rank ", victim), func(t *testing.T) {
			start := time.Now()
			for r, p := range startWorld(t, 3, "kill", fmt.Sprintf("GODDP_TEST_VICTIM=%d", victim)) {
				err := p.cmd.Wait()
				if r == victim {
					continue
				}
				if err != nil {
					t.Errorf("rank %d: %v\n%s", r, err, &p.err)
				}
				if want := fmt.Sprintf("rank %d lost", victim); !strings.Contains(p.out.String(), want) {
					t.Errorf("rank %d printed %q, want %q in it", r, &p.out, want)
				}
			}
			if took := time.Since(start); took > time.Minute {
				t.Errorf("took %v", took)
			}
		})
	}
}

// The errors of all other ranks name a rank that does not join, also if the missing rank has to
// host the store.
func TestAnAbsentRankIsNamed(t *testing.T) {
	for victim, want := range map[int]string{
		0: "rank 0, which hosts the job's store, has not come, has ended or cannot be reached: store 127.0.0.1:",
		2: "rank 2 has not come: it did not start, ended before, or cannot reach the store",
	} {
		t.Run(fmt.Sprint("rank ", victim), func(t *testing.T) {
			for r, p := range startWorld(t, 4, "absent", fmt.Sprintf("GODDP_TEST_VICTIM=%d", victim)) {
				err := p.cmd.Wait()
				if err != nil {
					t.Errorf("rank %d: %v\n%s", r, err, &p.err)
				}
				if r != victim && !strings.Contains(p.out.String(), want) {
					t.Errorf("rank %d printed %q, want %q in it", r, &p.out, want)
				}
			}
		})
	}
}

func TestMainReportsErrors(t *testing.T) {
	for mode, c := range map[string]struct {
		code            int
		stderr, message string
	}{
		"error":  {1, "error: no luck\n", "no luck"},
		"panic":  {2, "panic: a mistake", "panic: a mistake"},
		"panics": {2, "panic: a mistake", "panic: another"},
	} {
		t.Run(mode, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "error.json")
			p := start(t, mode, "RANK=3", "TORCHELASTIC_ERROR_FILE="+file)
			p.cmd.Wait()
			if code := p.cmd.ProcessState.ExitCode(); code != c.code || !strings.Contains(p.err.String(), c.stderr) {
				t.Errorf("exit code %d with %q, want %d with %q", code, &p.err, c.code, c.stderr)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Message struct {
					Message   string
					ExtraInfo struct {
						Timestamp string `json:"timestamp"`
						Stack     string `json:"py_callstack"`
					} `json:"extraInfo"`
				}
			}
			if err := json.Unmarshal(data, &got); err != nil {
				t.Fatalf("%v in %s", err, data)
			}
			if got.Message.Message != c.message || got.Message.ExtraInfo.Timestamp == "" || (mode != "error") != strings.Contains(got.Message.ExtraInfo.Stack, "process_test.go") ||
				strings.Contains(got.Message.ExtraInfo.Stack, "debug.Stack") || (mode == "panics") != strings.Contains(got.Message.ExtraInfo.Stack, "firstMistake") {
				t.Errorf("the error file holds %s", data)
			}
		})
	}
}

func TestMainEndsOnASignal(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), workerMode+"=wait")
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "waiting\n" {
		t.Fatalf("it printed %q, %v", line, err)
	}
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) || !strings.Contains(errs.String(), "signal: terminated") {
		t.Errorf("exit code %d with %q", code, &errs)
	}
}
