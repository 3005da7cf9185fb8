package comm_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/launcher"
)

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
			if err := errors.Join(pg.AllReduce(x, comm.Sum).Wait(ctx), pg.Close()); err != nil {
				return err
			}
			fmt.Printf("rank %d of %d: sum %v\n", pg.Rank(), pg.Size(), vals(x)[0])
		}
		return nil
	},
	// In the test program kill, the rank that GODDP_TEST_VICTIM names kills itself. The errors
	// of the other ranks must name that rank.
	"kill": joined(nil, func(ctx context.Context, pg *comm.ProcessGroup) error {
		// The victim may die before the other ranks have left this barrier.
		err := pg.Barrier().Wait(ctx)
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
	}),
	// In the test program leave, rank 1 returns an error while the other ranks wait for rank 1.
	"leave": joined(nil, func(ctx context.Context, pg *comm.ProcessGroup) error {
		if pg.Rank() == 1 {
			return errors.New("no luck")
		}
		return pg.Barrier().Wait(ctx)
	}),
	// The test program leave slowly is like leave, but the launcher tells rank 1 to stop before
	// it has returned its error. In leave early, that rank has no error until then.
	"leave slowly": closeAndWait(errors.New("no luck")),
	"leave early":  closeAndWait(nil),
	// In the test program hang, rank 1 hangs, while rank 0 waits for it, fails, and leaves at once.
	"hang": joined(nil, func(ctx context.Context, pg *comm.ProcessGroup) error {
		pg.OnShutdown(func(context.Context, error) { fmt.Println("shutdown") })
		err := pg.Barrier().Wait(ctx) // rank 1 has its shutdown function
		if pg.Rank() == 1 {
			select {}
		}
		if err == nil {
			err = pg.With(&comm.CallOptions{Timeout: time.Second}).Barrier().Wait(ctx)
		}
		return err
	}),
	// In the test program disagree, rank 1 alone fails, and both ranks return its error.
	"disagree": joined(nil, func(ctx context.Context, pg *comm.ProcessGroup) (err error) {
		if pg.Rank() == 1 {
			err = errors.New("no luck")
		}
		return comm.Agree(ctx, pg, err)
	}),
	// In the test program overlap, rank 1 makes a call that is rejected, while the other ranks
	// wait for rank 1.
	"overlap": joined(&comm.Options{Timeout: time.Hour}, func(ctx context.Context, pg *comm.ProcessGroup) error {
		if x := vec(make([]float32, 12)...); pg.Rank() == 1 {
			pg.AllToAll(x, x)
		}
		return pg.Barrier().Sync(ctx)
	}),
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
	"gone": joined(nil, func(ctx context.Context, pg *comm.ProcessGroup) error {
		for i := 0; ; i++ {
			if i == 5 && pg.Rank() == 1 {
				os.Exit(0)
			}
			if err := pg.AllReduce(vec(1), comm.Sum).Sync(ctx); err != nil {
				return err
			}
		}
	}),
	// The test program stop runs steps until all ranks agree to stop. The rank that
	// GODDP_TEST_VICTIM names sends itself a signal. Before, it removes the launcher's folder if
	// GODDP_TEST_REMOVE is set. The rank that GODDP_TEST_FAIL names then fails to save.
	"stop": joined(nil, func(ctx context.Context, pg *comm.ProcessGroup) error {
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
				if os.Getenv("GODDP_TEST_REMOVE") != "" {
					if err := os.RemoveAll(filepath.Join(filepath.Dir(os.Getenv("GODDP_STOP_FILE")), "..", "..")); err != nil {
						return err
					}
				}
				if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
					return err
				}
			}
		}
	}),
	// In the test program unheard, rank 0 starts a call and returns without waiting for the
	// call. Rank 1 does not join the call.
	"unheard": func(ctx context.Context) error {
		pg, err := comm.Init(ctx, nil)
		if err == nil {
			err = pg.Barrier().Wait(ctx)
		}
		if err == nil && pg.Rank() == 0 {
			pg.AllReduce(vec(1), comm.Sum)
		}
		return err
	},
	// In the test program early, rank 1 ends before Init.
	"early": func(ctx context.Context) error {
		if os.Getenv("RANK") == "1" {
			return nil
		}
		return joined(nil, func(context.Context, *comm.ProcessGroup) error { return nil })(ctx)
	},
	"subgroup":  joined(&comm.Options{ErrorMode: comm.CleanUpOnly}, func(_ context.Context, pg *comm.ProcessGroup) error { return failInASubgroup(pg) }),
	"whole":     joined(&comm.Options{ErrorMode: comm.CleanUpOnly}, func(_ context.Context, pg *comm.ProcessGroup) error { return failOutsideASubgroup(pg) }),
	"deaf":      deaf,
	"again":     again,
	"suspended": suspended,
	"starved":   joined(&comm.Options{ErrorMode: comm.CleanUpOnly}, starved),
	"add":       joined(&comm.Options{Timeout: time.Minute}, add),
	"error":     func(context.Context) error { return errors.New("no luck") },
	"panic":     func(context.Context) error { panic("a mistake") },
	"goexit": func(context.Context) error {
		firstExit()
		return nil
	},
	"panics": func(context.Context) error {
		defer func() { panic("another") }()
		firstMistake()
		return nil
	},
	// The test program hold asks for stop requests, and does not heed them.
	"hold": joined(nil, func(ctx context.Context, pg *comm.ProcessGroup) error {
		pg.StopRequested()
		fmt.Println("waiting")
		<-ctx.Done()
		return context.Cause(ctx)
	}),
	"wait": func(ctx context.Context) error {
		fmt.Println("waiting")
		<-ctx.Done()
		return context.Cause(ctx)
	},
}

// joined returns a program that makes the group of all ranks, runs f on it and closes it.
func joined(o *comm.Options, f func(ctx context.Context, pg *comm.ProcessGroup) error) func(context.Context) error {
	return func(ctx context.Context) error {
		pg, err := comm.Init(ctx, o)
		if err != nil {
			return err
		}
		defer pg.Close()
		return f(ctx, pg)
	}
}

//go:noinline
func firstMistake() { panic("a mistake") }

//go:noinline
func firstExit() { runtime.Goexit() }

// closeAndWait returns a program that closes the group on rank 1 before the other ranks' barrier, and waits there for the
// end of ctx. Rank 1 then returns err, or the error of ctx if err is nil.
func closeAndWait(err error) func(context.Context) error {
	return joined(nil, func(ctx context.Context, pg *comm.ProcessGroup) error {
		if pg.Rank() != 1 {
			return pg.Barrier().Wait(ctx)
		}
		pg.Close()
		<-ctx.Done()
		return cmp.Or(err, ctx.Err())
	})
}

func TestMain(m *testing.M) {
	programs := map[string]func(){}
	for name, program := range workers {
		programs[name] = func() { comm.Main(program) }
	}
	testkit.Main(m, programs)
}

// worker returns the command of a program of workers.
func worker(t *testing.T, program string, vars ...string) *exec.Cmd {
	cmd := testkit.Self(t, program)
	cmd.Env = append(append(cmd.Env, "GODDP_FLIGHT_DIR="+t.TempDir()), vars...)
	return cmd
}

// startWorld starts n ranks of a program without a launcher, as a scheduler does. Rank 0 hosts the store.
func startWorld(t *testing.T, n int, program string, vars ...string) []*testkit.Process {
	t.Helper()
	return testkit.World(t, n, func(int) *exec.Cmd { return worker(t, program, vars...) })
}

// launch runs n ranks of a program under the launcher, and returns their output. A test that calls it is long.
func launch(t *testing.T, n int, program string, vars ...string) (out, errs string, err error) {
	t.Helper()
	testkit.Long(t)
	t.Setenv("TMPDIR", t.TempDir())
	var o, e lockedBuffer
	_, err = launcher.Run(t.Context(), &launcher.Config{
		Args: []string{os.Args[0]}, Workers: n, Env: append(testkit.Self(t, program).Env, vars...), Stdout: &o, Stderr: &e,
	})
	return o.String(), e.String(), err
}

func TestWorldOfProcesses(t *testing.T) {
	for r, p := range startWorld(t, 3, "sum") {
		if want := strings.Repeat(fmt.Sprintf("rank %d of 3: sum 3\n", r), 2); p.Wait() != 0 || p.Stdout() != want {
			t.Errorf("rank %d printed %q, want %q", r, p.Stdout(), want)
		}
	}
}

// A failure in one group breaks the other groups also if the ranks are processes. Other tests
// cover ranks that are goroutines.
func TestFailuresOfOtherGroups(t *testing.T) {
	testkit.Long(t)
	for _, program := range []string{"subgroup", "whole"} {
		for r, p := range startWorld(t, 4, program) {
			if code := p.Wait(); code != 0 {
				t.Errorf("%s: rank %d: exit code %d", program, r, code)
			}
		}
	}
}

// If one rank gets a signal, the ranks agree to stop by a reduction of the program, and stop
// after the same step. The launcher counts the end of the job as a requested stop. That the
// launcher's folder is gone changes nothing.
func TestRanksAgreeOnAStopRequestOfOneRank(t *testing.T) {
	for _, remove := range []string{"", "1"} {
		out, errs, err := launch(t, 3, "stop", "GODDP_TEST_VICTIM=2", "GODDP_TEST_REMOVE="+remove)
		var signal *launcher.SignalError
		if !errors.As(err, &signal) || signal.Signal != syscall.SIGTERM {
			t.Fatalf("%v\n%s", err, errs)
		}
		_, line, _ := strings.Cut(out, "]: ")
		if line, _, _ = strings.Cut(line, "\n"); strings.Count(out, line+"\n") != 3 {
			t.Errorf("not all ranks stop behind one step:\n%s", out)
		}
		if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// If a rank fails to save during a stop, the job has failed, whether that rank ends before or
// after the other ranks.
func TestFailureDuringAStopIsAFailure(t *testing.T) {
	for range 4 {
		_, errs, err := launch(t, 3, "stop", "GODDP_TEST_VICTIM=2", "GODDP_TEST_FAIL=1")
		var failure *launcher.FailureError
		if !errors.As(err, &failure) || failure.Rank != 1 || launcher.ExitCode(err) != 1 || strings.Contains(failure.Report(), "Other failures") {
			t.Errorf("%v\n%s", err, errs)
		}
	}
}

// If a program does not close its groups, Main closes them, and all ranks exit with code 0.
func TestMainClosesGroups(t *testing.T) {
	for range 4 {
		if _, errs, err := launch(t, 4, "unclosed"); err != nil || errs != "" {
			t.Fatalf("%v\n%s", err, errs)
		}
	}
}

// If a call fails while Main closes the groups, the process fails.
func TestMainReportsFailedCalls(t *testing.T) {
	ps := startWorld(t, 2, "unheard")
	if code := ps[1].Wait(); code != 0 {
		t.Errorf("rank 1: exit code %d", code)
	}
	if code := ps[0].Wait(); code != 1 || !strings.Contains(ps[0].Stderr(), "error: closing the process group: ") || !strings.Contains(ps[0].Stderr(), "rank 1 left") {
		t.Errorf("rank 0: exit code %d", code)
	}
}

// The launcher names the rank that failed as the root cause, not the ranks whose calls failed because
// of it, nor the ranks that comm.Agree gave its error. A rank that had no error before the launcher
// told it to stop is not the root cause, although its peers name it.
func TestTheLauncherBlamesTheCause(t *testing.T) {
	for _, c := range []struct {
		program string
		times   int
		isRank1 bool   // whether rank 1 is the root cause
		says    string // a part of the root cause's error
	}{
		{"leave", 2, true, "no luck"},
		{"leave slowly", 1, true, "no luck"},
		{"leave early", 1, false, "rank 1 left: it closed the process group"},
		{"disagree", 4, true, "no luck"},
		{"early", 1, false, "rank 1 could not join: its process ended before it joined"}, // at once, although its exit code is 0
		{"overlap", 1, true, "rank 1: AllToAll: dst [0x"},
	} {
		for range c.times {
			_, errs, err := launch(t, 4, c.program)
			var failure *launcher.FailureError
			if !errors.As(err, &failure) {
				t.Fatalf("%s: got %v", c.program, err)
			}
			if (failure.Rank == 1) != c.isRank1 || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: blamed: %v\n%s", c.program, err, errs)
			}
		}
	}
}

// A rank that hangs runs its shutdown functions, says where it hangs and ends by itself, although
// the launcher tells it to stop as soon as the rank that waited for it has failed. The launcher
// would wait longer before it kills the rank.
func TestARankThatHangsEndsItself(t *testing.T) {
	out, errs, err := launch(t, 2, "hang")
	var failure *launcher.FailureError
	exits := regexp.MustCompile(`\n  rank 1 \(local_rank: 1, pid: \d+\) exited with code 1 with the same error`)
	if !errors.As(err, &failure) || failure.Rank != 0 || !exits.MatchString(failure.Report()) {
		t.Fatalf("want rank 0 as the root cause, and that rank 1 exits with code 1: %v\n%s", err, errs)
	}
	if want := "[default1]: shutdown\n"; out != want {
		t.Errorf("the program printed %q, want %q", out, want)
	}
	report := failure.Report()
	if most, root := strings.Index(report, "Most probable: rank 1 is behind"), strings.Index(report, "Root Cause"); most < 0 || root < most {
		t.Errorf("the report does not begin with who was waited for:\n%s", report)
	}
	if _, stacks, _ := strings.Cut(errs, "It is here:"); !strings.Contains(stacks, "goroutine 1 [select (no cases)]") || strings.Contains(stacks, "created by github.com/goddp/goddp/comm") {
		t.Errorf("rank 1 does not say where it was, or where goddp was:\n%s", errs)
	}
}

// A rank that exited with code 0 too early does not count as failed, but the launcher's report
// names that rank first.
func TestTheLauncherNamesTheRankThatLeft(t *testing.T) {
	for range 4 {
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
		for r, p := range startWorld(t, 3, "kill", fmt.Sprint("GODDP_TEST_VICTIM=", victim)) {
			if code := p.Wait(); r != victim && (code != 0 || !strings.Contains(p.Stdout(), fmt.Sprintf("rank %d lost", victim))) {
				t.Errorf("rank %d: exit code %d, and it printed %q, want that rank %d was lost", r, code, p.Stdout(), victim)
			}
		}
	}
}

func TestMainReportsErrors(t *testing.T) {
	for program, c := range map[string]struct {
		code            int
		stderr, message string
	}{
		"error":  {1, "error: no luck\n", "no luck"},
		"panic":  {2, "panic: a mistake", "panic: a mistake"},
		"panics": {2, "panic: a mistake", "panic: another"},
		"goexit": {1, "firstExit", "the program called runtime.Goexit on its goroutine, as FailNow of package testing does"},
	} {
		t.Run(program, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "error.json")
			r := testkit.Run(t, worker(t, program, "RANK=3", "TORCHELASTIC_ERROR_FILE="+file))
			if r.Code != c.code || !strings.Contains(r.Stderr, c.stderr) {
				t.Errorf("exit code %d with %q, want %d with %q", r.Code, r.Stderr, c.code, c.stderr)
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
			if got.Message.Message != c.message || got.Message.ExtraInfo.Timestamp == "" || (program != "error") != strings.Contains(got.Message.ExtraInfo.Stack, "process_test.go") ||
				strings.Contains(got.Message.ExtraInfo.Stack, "debug.Stack") || (program == "panics") != strings.Contains(got.Message.ExtraInfo.Stack, "firstMistake") {
				t.Errorf("the error file holds %s", data)
			}
		})
	}
}

// If nobody reads a rank's stderr, a signal ends the rank in time all the same, and its error file is written.
func TestMainEndsAlthoughNobodyReads(t *testing.T) {
	testkit.Long(t)
	stderr, fill := testkit.UnreadPipe(t)
	file := filepath.Join(t.TempDir(), "error.json")
	cmd := worker(t, "hold", "RANK=0", "WORLD_SIZE=1", "TORCHELASTIC_ERROR_FILE="+file, "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	fill()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(testkit.Soon / 4):
		t.Fatal("the rank does not end")
	}
	if _, err := os.Stat(file); err != nil || cmd.ProcessState.ExitCode() != 128+int(syscall.SIGTERM) {
		t.Errorf("exit code %d; %v", cmd.ProcessState.ExitCode(), err)
	}
}

func TestMainEndsOnASignal(t *testing.T) {
	p := testkit.Start(t, worker(t, "wait"))
	p.Await("^waiting$", 1)
	p.Signal(syscall.SIGTERM)
	if code := p.Wait(); code != 128+int(syscall.SIGTERM) || !strings.Contains(p.Stderr(), "signal: terminated") {
		t.Errorf("exit code %d", code)
	}
}
