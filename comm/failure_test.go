package comm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/comm/failure"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
)

// lockedBuffer is a buffer to which several goroutines may write at once.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String returns what was written, without the warning about a machine that lacks OpenBLAS.
func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return noBLAS.ReplaceAllString(l.b.String(), "")
}

var noBLAS = regexp.MustCompile(`(?m)^.*matrix products run in pure Go.*\n`)

// each runs f for all groups at once.
func each(groups []*comm.ProcessGroup, f func(r int, pg *comm.ProcessGroup)) {
	var wg sync.WaitGroup
	for r, pg := range groups {
		wg.Go(func() { f(r, pg) })
	}
	wg.Wait()
}

// closeAll closes the groups at once.
func closeAll(groups []*comm.ProcessGroup) {
	each(groups, func(_ int, pg *comm.ProcessGroup) { pg.Close() })
}

// local calls comm.Local with options, which may be nil. It returns the groups, and the log of all of them.
func local(t *testing.T, n int, o *comm.Options) ([]*comm.ProcessGroup, *lockedBuffer) {
	t.Helper()
	log := new(lockedBuffer)
	if o == nil {
		o = &comm.Options{}
	}
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	groups, err := comm.Local(n, o)
	if err != nil {
		t.Fatal(err)
	}
	return groups, log
}

// In the mode NoErrorHandling, the watchdog only logs that a deadline has passed. The call goes
// on, and succeeds when the other rank joins.
func TestNoErrorHandlingOnlyLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, log := local(t, 2, &comm.Options{ErrorMode: comm.NoErrorHandling, Timeout: time.Minute})
		each(groups, func(r int, pg *comm.ProcessGroup) {
			time.Sleep(time.Duration(r) * time.Hour)
			for range 2 {
				if err := pg.AllReduce(vec(1), comm.Sum).Wait(t.Context()); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			pg.Close()
		})
		if n := strings.Count(log.String(), "Watchdog caught collective operation timeout: Work(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60000 milliseconds before timing out"); n != 1 {
			t.Errorf("%d lines about it in the log:\n%s", n, log)
		}
	})
}

// If the deadlines of several ranks pass at once, the error names the rank that is behind, and only one of the ranks
// logs the diagnosis. The same holds if a stop request makes the deadlines pass early, although no call has been in
// flight for long.
func TestDeadlinesNameTheRankBehind(t *testing.T) {
	for _, early := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			groups, log := local(t, 6, &comm.Options{ErrorMode: comm.BlockingWait, Timeout: time.Minute})
			if early {
				go func() {
					time.Sleep(3 * time.Second)
					each(groups, func(_ int, pg *comm.ProcessGroup) { comm.ExpireDeadlines(pg) })
				}()
			}
			each(groups, func(r int, pg *comm.ProcessGroup) {
				if r == 1 {
					return
				}
				if err := pg.Barrier().Sync(t.Context()); !errors.Is(err, comm.ErrTimeout) || !strings.Contains(fmt.Sprint(err), "rank 1 is behind") {
					t.Errorf("early %v: rank %d: %v, want a timeout, and that rank 1 is behind", early, r, err)
				}
			})
			closeAll(groups)
			if n := strings.Count(log.String(), "Most probable: rank 1 is behind"); n != 1 {
				t.Errorf("early %v: said %d times:\n%s", early, n, log)
			}
		})
	}
}

// The flight record of a rank holds the time at which the program called Abort, unless a call
// of the group had failed before.
func TestAbortIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, _ := local(t, 2, &comm.Options{ErrorMode: comm.BlockingWait})
		w := groups[1].Barrier()
		groups[0].Abort(errors.New("no luck"))
		err := w.Sync(t.Context())
		synctest.Wait() // returns when the watchdog has handled the failure
		groups[1].Abort(err)
		for r, pg := range groups {
			if at := comm.Recorded(pg).Aborted; at.IsZero() != (r == 1) {
				t.Errorf("rank %d aborted at %v", r, at)
			}
			pg.Close()
		}
	})
}

// If the program does not wait for a call, and that call fails while Close runs, Close returns
// the failure. If the program has aborted the group, Close returns nil.
func TestCloseReturnsUnreportedFailures(t *testing.T) {
	for _, aborts := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			groups, log := local(t, 2, &comm.Options{})
			sub, err := split(t, groups)
			if err != nil {
				t.Fatal(err)
			}
			sub[0].AllReduce(vec(1), comm.Sum)
			if aborts {
				groups[0].Abort(errors.New("no more"))
			}
			ended := make(chan error, 1)
			go func() { ended <- groups[0].Close() }()
			synctest.Wait() // returns when Close is waiting for the call
			groups[1].Close()
			err = <-ended
			var call *failure.CallError
			if said := errors.As(err, &call) && errors.Is(err, comm.ErrPeerLost); said == aborts || (err == nil) != aborts {
				t.Errorf("aborted %v: %v", aborts, err)
			}
			if said := strings.Contains(log.String(), "a call failed, and the program did not wait for it"); said == aborts {
				t.Errorf("aborted %v: the log:\n%s", aborts, log)
			}
		})
	}
}

// Close does not return a failure again if a call, or Close of a subgroup, has returned that
// failure to the program.
func TestCloseReturnsAFailureOnce(t *testing.T) {
	for name, learn := range map[string]func(pg, sub *comm.ProcessGroup, w *comm.Work) error{
		"nobody waited":     func(*comm.ProcessGroup, *comm.ProcessGroup, *comm.Work) error { return nil },
		"the call":          func(_, _ *comm.ProcessGroup, w *comm.Work) error { return w.Sync(context.Background()) },
		"the group's Close": func(_, sub *comm.ProcessGroup, _ *comm.Work) error { return sub.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				groups, _ := local(t, 2, &comm.Options{ErrorMode: comm.BlockingWait})
				sub, err := split(t, groups)
				if err != nil {
					t.Fatal(err)
				}
				w := sub[0].AllReduce(vec(1), comm.Sum)
				groups[1].Close()
				synctest.Wait() // returns when the call has failed
				waitErr := learn(groups[0], sub[0], w)
				err = groups[0].Close()
				if !errors.Is(errors.Join(waitErr, err), comm.ErrPeerLost) || (waitErr == nil) == (err == nil) {
					t.Errorf("first %v, and %v by Close: want one of them", waitErr, err)
				}
			})
		})
	}
}

// split makes a subgroup of all ranks. It returns each rank's handle on the subgroup.
func split(t *testing.T, groups []*comm.ProcessGroup) ([]*comm.ProcessGroup, error) {
	subs, errs := make([]*comm.ProcessGroup, len(groups)), make([]error, len(groups))
	each(groups, func(r int, pg *comm.ProcessGroup) { subs[r], errs[r] = pg.Split(t.Context(), 0, 0) })
	return subs, errors.Join(errs...)
}

// A rank without a call in flight logs whose call broke the group.
func TestIdleRankLogsTheFailureOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, log := local(t, 2, &comm.Options{Timeout: time.Minute})
		if err := groups[0].Barrier().Wait(t.Context()); !errors.Is(err, comm.ErrTimeout) {
			t.Error(err)
		}
		time.Sleep(time.Minute) // a minute of the clock of the synctest bubble
		closeAll(groups)
		if want := "[Rank 1] Watchdog: a collective failed: rank 0: Barrier #1: timed out after 1m0s"; !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in the log:\n%s", want, log)
		}
	})
}

// Each call times out at its own deadline, whatever the order of the deadlines. A call that
// ended in time does not time out.
func TestEachCallHasItsOwnDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, log := local(t, 4, &comm.Options{ErrorMode: comm.NoErrorHandling})
		var works []*comm.Work
		for peer, minutes := range []int{0, 5, 1, 3} {
			if peer > 0 {
				o := comm.CallOptions{Timeout: time.Duration(minutes) * time.Minute}
				works = append(works, groups[0].With(&o).Recv(vec(0), peer), groups[0].With(&o).Send(vec(0), peer))
			}
		}
		for _, pg := range groups[1:] {
			if err := pg.Recv(vec(0), 0).Wait(t.Context()); err != nil { // so the Send of rank 0 to this rank ends
				t.Fatal(err)
			}
		}
		time.Sleep(6 * time.Minute)
		said := log.String()
		for _, minutes := range []int{1, 3, 5} {
			want := fmt.Sprintf("OpType=RECV, NumelIn=0, NumelOut=1, Timeout(ms)=%d) ran for %[1]d milliseconds", minutes*60000)
			before, after, ok := strings.Cut(said, want)
			if !ok || strings.Contains(before, "OpType") {
				t.Fatalf("%q is not next in the log:\n%s", want, log)
			}
			said = after
		}
		if strings.Contains(log.String(), "SEND") {
			t.Errorf("calls that ended are in the log:\n%s", log)
		}
		for _, pg := range groups[1:] {
			pg.Send(vec(0), 0)
		}
		for _, w := range works {
			if err := w.Sync(t.Context()); err != nil {
				t.Error(err)
			}
		}
		closeAll(groups)
	})
}

// If a program ignores a failure, the watchdogs end the process of the rank whose call is
// overdue, and the process of the missing rank. If the missing rank answers the inquiry too
// late, the diagnosis says that the missing rank left no flight record.
func TestAsyncErrorHandlingEndsTheProcess(t *testing.T) {
	testkit.Long(t)
	for r, p := range startWorld(t, 2, "deaf") {
		if code := p.Wait(); code != 1 {
			t.Errorf("rank %d: exit code %d", r, code)
		}
		want := []string{"timed out after 500ms while running, waiting for rank 1: rank 1 (is behind|left no record)", "ending it, as error mode async has it", "shutdown hook: true",
			"functions given to OnShutdown: the program called runtime.Goexit"}
		if r == 0 {
			want = append(want, `\[Rank 0] Watchdog caught collective operation timeout: Work\(SeqNum=2, OpType=BARRIER`)
		}
		for _, w := range want {
			if len(p.Matches(w)) == 0 {
				t.Errorf("rank %d does not say %q", r, w)
			}
		}
	}
}

// In the test program deaf, rank 0 makes a call that rank 1 does not join. Both ranks ignore
// all errors and never close the group. Their shutdown function ends its goroutine.
func deaf(ctx context.Context) error {
	pg, err := comm.Init(ctx, &comm.Options{Timeout: 20 * time.Second})
	if err != nil {
		return err
	}
	pg.OnShutdown(func(_ context.Context, cause error) {
		fmt.Println("shutdown hook:", cause != nil)
		runtime.Goexit()
	})
	if err := pg.Barrier().Wait(ctx); pg.Rank() == 0 { // rank 1 has its shutdown function, and may still be in this call
		if err != nil {
			return err
		}
		pg.With(&comm.CallOptions{Timeout: 500 * time.Millisecond}).Barrier()
	}
	select {}
}

// In the mode BlockingWait, a program can handle the error of a call and make a new group.
func TestBlockingWaitLetsTheProcessMakeANewGroup(t *testing.T) {
	testkit.Long(t)
	for r, p := range startWorld(t, 3, "again", "GODDP_BLOCKING_WAIT=1") {
		if want := "caught: true, then 3\n"; p.Wait() != 0 || p.Stdout() != want {
			t.Errorf("rank %d printed %q, want %q", r, p.Stdout(), want)
		}
	}
}

// In the test program again, ranks 0 and 1 make a call that times out, because rank 2 does not
// join it. Then all ranks make a second group, and sum their numbers.
func again(ctx context.Context) error {
	pg, err := comm.Init(ctx, &comm.Options{Timeout: 20 * time.Second})
	if err != nil {
		return err
	}
	if pg.Rank() != 2 {
		err = pg.With(&comm.CallOptions{Timeout: 300 * time.Millisecond}).AllReduce(vec(1), comm.Sum).Wait(ctx)
	} else { // rank 2 waits until its own call fails with the same cause
		err = pg.Recv(vec(1), 0).Wait(ctx)
	}
	caught := errors.Is(err, comm.ErrTimeout)
	pg.Close()
	if pg, err = comm.Init(ctx, nil); err != nil {
		return err
	}
	defer pg.Close()
	x := vec(float32(pg.Rank()))
	if err := pg.AllReduce(x, comm.Sum).Wait(ctx); err != nil {
		return err
	}
	fmt.Printf("caught: %v, then %v\n", caught, vals(x)[0])
	return nil
}

// A log that blocks does not keep the watchdog from handling a failure, nor from ending.
func TestBlockedLogDoesNotBlockTheWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		groups, err := comm.Local(2, &comm.Options{Timeout: time.Minute, Log: slog.New(blocked{slog.DiscardHandler, release})})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := groups[0].Barrier().Wait(t.Context()); !errors.Is(err, comm.ErrTimeout) {
			t.Error(err)
		}
		if took := time.Since(start); took > time.Minute+2*time.Second {
			t.Errorf("after %v", took)
		}
		closeAll(groups)
		close(release)
	})
}

// blocked is a log handler. The watchdog's lines block in it until the channel `until` is
// closed.
type blocked struct {
	slog.Handler
	until chan struct{}
}

func (b blocked) Enabled(context.Context, slog.Level) bool { return true }

func (b blocked) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "Watchdog") {
		<-b.until
	}
	return nil
}

func TestErrorModesOfTheEnvironment(t *testing.T) {
	for _, c := range []struct {
		name      string
		vars      map[string]string
		option    comm.ErrorMode
		want      comm.ErrorMode
		heartbeat time.Duration
		unwatched bool
		err       string
	}{
		{name: "nothing", want: comm.AsyncErrorHandling},
		{name: "golaunch", vars: map[string]string{"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, want: comm.AsyncErrorHandling},
		{name: "skip clean-up", vars: map[string]string{"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}, want: comm.AsyncErrorHandling},
		{name: "clean up", vars: map[string]string{"GODDP_ASYNC_ERROR_HANDLING": "2"}, want: comm.CleanUpOnly},
		{name: "none", vars: map[string]string{"NCCL_ASYNC_ERROR_HANDLING": "0"}, want: comm.NoErrorHandling},
		{name: "blocking", vars: map[string]string{"TORCH_NCCL_BLOCKING_WAIT": "1"}, want: comm.BlockingWait},
		{name: "option", vars: map[string]string{"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}, option: comm.BlockingWait, want: comm.BlockingWait},
		{name: "no number", vars: map[string]string{"TORCH_NCCL_ASYNC_ERROR_HANDLING": "yes"}, err: `comm: TORCH_NCCL_ASYNC_ERROR_HANDLING="yes": want 0, 1, 2 or 3`},
		{name: "heartbeat", vars: map[string]string{"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "30"}, want: comm.AsyncErrorHandling, heartbeat: 30 * time.Second},
		{name: "unwatched", vars: map[string]string{"TORCH_NCCL_ENABLE_MONITORING": "0"}, want: comm.AsyncErrorHandling, unwatched: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			for k, v := range c.vars {
				t.Setenv(k, v)
			}
			mode, heartbeat, monitoring, err := comm.Settled(c.option)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("got %v, want %q", err, c.err)
				}
				return
			}
			if c.heartbeat == 0 {
				c.heartbeat = comm.DefaultHeartbeat
			}
			if err != nil || mode != c.want || heartbeat != c.heartbeat || monitoring == c.unwatched {
				t.Errorf("got %v, %v, %v, %v", mode, heartbeat, monitoring, err)
			}
		})
	}
}

// If the ranks' calls differ under CheckCalls, the error of each rank holds the calls of all
// ranks, and none of the calls has run.
func TestCheckCallsComparesCallsBeforeTheyRun(t *testing.T) {
	t.Setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
	groups, _ := local(t, 3, &comm.Options{Timeout: time.Minute})
	each(groups, func(r int, pg *comm.ProcessGroup) {
		defer pg.Close()
		pair, err := pg.Split(t.Context(), min(r, 1), 0)
		if err != nil {
			t.Error(err)
			return
		}
		x := vec(1)
		if err := pair.AllReduce(x, comm.Sum).Wait(t.Context()); err != nil || vals(x)[0] != float32(pair.Size()) {
			t.Errorf("rank %d: %v, %v", r, vals(x), err)
		}
		x = vec(1, 2, 3)
		if r == 1 {
			err = pg.Broadcast(x, 2).Wait(t.Context())
		} else {
			err = pg.AllReduce(x, comm.Sum).Wait(t.Context())
		}
		var m *failure.MismatchError
		if !errors.As(err, &m) {
			t.Errorf("rank %d: %v", r, err)
			return
		}
		for _, want := range []string{"ranks 0, 2 AllReduce #2(sum, float32, 3 elements)", "rank 1 Broadcast #2(float32, 3 elements, root 2)"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("rank %d: %q lacks %q", r, err, want)
			}
		}
		if x := vals(x); x[0] != 1 {
			t.Errorf("rank %d: it ran: %v", r, x)
		}
	})
}

// If a rank is missing under CheckCalls, the calls of the other ranks time out.
func TestCheckCallsTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, _ := local(t, 3, &comm.Options{Timeout: time.Minute, CheckCalls: true})
		each(groups[:2], func(r int, pg *comm.ProcessGroup) {
			var late *failure.TimeoutError
			if err := pg.Barrier().Wait(t.Context()); !errors.As(err, &late) || fmt.Sprint(late.Waiting) != "[2]" {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		closeAll(groups)
	})
}

// Close ends a call that is waiting for the comparison with the calls of the other ranks.
func TestCloseEndsAComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, _ := local(t, 2, &comm.Options{Timeout: time.Minute, CheckCalls: true})
		parts, err := split(t, groups)
		if err != nil {
			t.Fatal(err)
		}
		var call sync.WaitGroup
		call.Go(func() {
			if err := parts[0].Barrier().Sync(t.Context()); !errors.Is(err, comm.ErrClosed) {
				t.Errorf("a call in a group that was closed: %v, want ErrClosed", err)
			}
		})
		synctest.Wait()
		parts[0].Close()
		call.Wait()
		for _, pg := range groups {
			if pg.Failed() {
				t.Errorf("rank %d: the group of all failed", pg.Rank())
			}
			pg.Close()
		}
	})
}

func TestMonitoredBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, _ := local(t, 4, &comm.Options{Timeout: time.Minute})
		each(groups, func(r int, pg *comm.ProcessGroup) {
			defer pg.Close()
			for i := range 5 {
				time.Sleep(time.Duration(r*i) * time.Second)
				if err := pg.MonitoredBarrier(t.Context()); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			if r != 1 && r != 3 {
				var late *comm.BarrierError
				err := pg.With(&comm.CallOptions{Timeout: time.Second}).MonitoredBarrier(t.Context())
				if !errors.As(err, &late) || !errors.Is(err, comm.ErrTimeout) || fmt.Sprint(late.Missing) != "[1 3]" {
					t.Errorf("rank %d: %v", r, err)
				}
			}
			err := pg.Barrier().Wait(t.Context()) // the group still works
			if err == nil && (r == 1 || r == 3) { // ranks 1 and 3 now make the call in which the other ranks timed out
				err = pg.MonitoredBarrier(t.Context())
			}
			if err == nil { // now all ranks have called MonitoredBarrier equally often
				err = pg.MonitoredBarrier(t.Context())
			}
			if err != nil {
				t.Errorf("rank %d, late: %v", r, err)
			}
		})
	})
}

// If one rank sleeps before every collective, the log names that rank as the straggler, and
// says how long the other ranks waited for it.
func TestStragglerIsLogged(t *testing.T) {
	t.Setenv("GODDP_DEBUG", "INFO")
	synctest.Test(t, func(t *testing.T) {
		groups, log := local(t, 3, &comm.Options{})
		each(groups, func(r int, pg *comm.ProcessGroup) {
			for range 600 {
				if r == 1 {
					time.Sleep(3 * time.Millisecond)
				} else {
					time.Sleep(time.Millisecond)
				}
				if err := pg.Barrier().Wait(t.Context()); err != nil {
					t.Errorf("rank %d: %v", r, err)
				}
			}
		})
		synctest.Wait()
		closeAll(groups)
		for _, want := range []string{
			"collectives 1 to 256: rank 1 came last to 256 of 256 and held the others up for 512.0 ms",
			"512 collectives in 1.8s: rank 1 was the slowest and held the others up for 1024.0 ms",
		} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("%q is not there once in\n%s", want, log)
			}
		}
	})
}

// If a rank does not post its times, the log names that rank.
func TestStragglerWithoutTimes(t *testing.T) {
	t.Setenv("GODDP_DEBUG", "DETAIL")
	synctest.Test(t, func(t *testing.T) {
		log := new(lockedBuffer)
		groups, err := comm.Local(3, &comm.Options{Log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range []int{0, 2} {
			if err := groups[r].Post(t.Context(), "straggler/1", []byte("times")); err != nil {
				t.Error(err)
			}
		}
		comm.JudgeStragglers(groups[0], 1)
		closeAll(groups)
		if want := "rank 1 has not reported its times of window 1"; !strings.Contains(log.String(), want) {
			t.Errorf("%q is not in\n%s", want, log)
		}
	})
}

// The monitor logs that the watchdog is stuck and, if monitoring is on, ends the process.
func TestMonitorDetectsAStuckWatchdog(t *testing.T) {
	t.Setenv("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "30")
	t.Setenv("GODDP_FLIGHT_DIR", t.TempDir())
	for monitoring, want := range map[string]int{"1": 2, "0": 1} {
		t.Setenv("TORCH_NCCL_ENABLE_MONITORING", monitoring)
		synctest.Test(t, func(t *testing.T) {
			log, until := new(lockedBuffer), make(chan struct{})
			var ends atomic.Int32
			pg, err := comm.Init(t.Context(), comm.OnExit(&comm.Options{
				World: &comm.World{Size: 1}, Log: slog.New(slog.NewTextHandler(log, nil)),
			}, func(code int) {
				if ends.Add(1); code != 1 {
					t.Errorf("exit code %d", code)
				}
				<-until
			}))
			if err != nil {
				t.Fatal(err)
			}
			func() {
				defer func() { recover() }()
				pg.Broadcast(vec(1), 1) // the call is rejected, so the watchdog calls exit; here exit blocks, so the watchdog is stuck
			}()
			time.Sleep(10 * time.Minute)
			if got := int(ends.Load()); got != want || !strings.Contains(log.String(), "the watchdog got stuck") {
				t.Errorf("monitoring %s: the process was ended %d times, want %d; the log:\n%s", monitoring, got, want, log)
			}
			close(until)
			pg.Close()
		})
	}
}

// An error is no interruption if it also says something else.
func TestInterruptions(t *testing.T) {
	stop := &comm.SignalError{Signal: syscall.SIGTERM}
	call := &failure.CallError{Rank: 1, Err: &failure.AbortedError{By: 1, Err: stop}}
	for want, errs := range map[bool][]error{
		true:  {stop, context.Canceled, call, fmt.Errorf("epoch 3: %w", context.Canceled), errors.Join(call, stop)},
		false: {errors.New("no luck"), errors.Join(errors.New("no luck"), call), &failure.AbortedError{By: 1}, context.DeadlineExceeded},
	} {
		for _, err := range errs {
			if comm.IsInterruption(err) != want {
				t.Errorf("%q is an interruption: %v, want %v", err, !want, want)
			}
		}
	}
}

// CausedBy returns the rank that could not join, was lost or aborted the group, or whose call
// failed first. It returns nil if the failure began on the rank that has the error.
func TestErrorsNameTheRankThatCausedThem(t *testing.T) {
	lost := &failure.PeerLostError{Peer: 2}
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("no luck"), "none"},
		{&failure.CallError{Rank: 0, Err: &failure.TimeoutError{Waiting: []int{3}}}, "none"},
		{fmt.Errorf("epoch 3: %w", &failure.CallError{Rank: 0, Err: lost}), "2"},
		{&failure.AbortedError{By: 1, Err: errors.New("no luck")}, "1"},
		{&failure.AbortedError{By: 1, Err: lost}, "2"},
		{fmt.Errorf("rank 0: initializing: %w", &failure.JoinError{Rank: 3, Err: errors.New("no luck")}), "3"},
		{fmt.Errorf("%w; here: %w", &failure.JoinError{Rank: 3, Err: errors.New("no luck")}, lost), "3"},
		{&failure.CallError{Rank: 1, Group: "default/1/1", Err: &failure.AbortedError{By: 3, Err: errors.New("no luck")}}, "3"},
		{&failure.CallError{Rank: 1, Err: &failure.CallError{Rank: 2, Group: "default/1/0", Err: &failure.TimeoutError{Waiting: []int{4}}}}, "2"},
		{&failure.CallError{Rank: 1, Err: fmt.Errorf("epoch 3: %w", &failure.CallError{Rank: 1, Err: &failure.TimeoutError{}})}, "none"},
		{&failure.CallError{Rank: 2, Err: lost}, "none"},
		{errors.Join(errors.New("saving"), &failure.AbortedError{By: 0, Err: errors.New("no luck")}), "0"},
	} {
		got := "none"
		if rank := comm.CausedBy(c.err); rank != nil {
			got = fmt.Sprint(*rank)
		}
		if got != c.want {
			t.Errorf("%v: caused by %s, want %s", c.err, got, c.want)
		}
	}
}

// A call with the largest timeout never times out.
func TestLargestTimeoutNeverPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		groups, log := local(t, 2, &comm.Options{Timeout: math.MaxInt64})
		each(groups, func(r int, pg *comm.ProcessGroup) {
			defer pg.Close()
			time.Sleep(time.Duration(1+r) * time.Hour)
			if err := pg.Barrier().Sync(t.Context()); err != nil {
				t.Errorf("rank %d: %v", r, err)
			}
		})
		if s := log.String(); s != "" {
			t.Error(s)
		}
	})
}

// A failure in a subgroup breaks all groups of all ranks, with the same cause. The cause names
// a rank by its number in the job.
func TestFailureInASubgroupBreaksAllGroups(t *testing.T) {
	commtest.OnRanks(t, 4, nil, failInASubgroup)
}

func failInASubgroup(pg *comm.ProcessGroup) error {
	ctx := context.Background()
	defer pg.MonitoredBarrier(ctx) // no rank leaves before all ranks know of the failure
	sub, err := pg.Split(ctx, pg.Rank()%2, 0)
	if err == nil && pg.Rank() == 3 {
		err = sub.Barrier().Sync(ctx) // returns when rank 1 has called Split as well
		func() {
			defer func() { recover() }()
			sub.Broadcast(vec(1), 2)
		}()
		return err
	}
	var whole *comm.Work
	if err == nil {
		whole = pg.Barrier() // rank 3 does not join this Barrier
	}
	for err == nil && pg.Rank() == 1 {
		err = sub.Barrier().Sync(ctx)
	}
	if whole != nil {
		err = errors.Join(err, whole.Sync(ctx))
	}
	var usage *failure.UsageError
	if !errors.As(err, &usage) || usage.Rank != 3 || !strings.Contains(err.Error(), "rank 3: Broadcast: rank 2 is out of range for a group of 2") {
		return fmt.Errorf("got %v, want what rank 3 of the job called", err)
	}
	if culprit := comm.CausedBy(err); culprit == nil || *culprit != 3 {
		return fmt.Errorf("%v is not caused by rank 3 of the job", err)
	}
	var call *failure.CallError
	if pg.Rank() == 1 && (!errors.As(err, &call) || call.Rank != 1 || call.Group != "default/1/1") {
		return fmt.Errorf("%v does not say which call of rank 1 failed", err)
	}
	return nil
}

// Abort of a subgroup breaks that subgroup on all its ranks, and no other group.
func TestAbortOfASubgroupBreaksItAlone(t *testing.T) { commtest.OnRanks(t, 4, nil, abortASubgroup) }

func abortASubgroup(pg *comm.ProcessGroup) error {
	ctx := context.Background()
	sub, err := pg.Split(ctx, pg.Rank()%2, 0)
	if err != nil {
		return err
	}
	if pg.Rank() == 3 {
		sub.Abort(errors.New("no luck"))
	}
	for pg.Rank()%2 == 1 && err == nil {
		err = sub.Barrier().Sync(ctx)
	}
	if pg.Rank() == 1 {
		if culprit := comm.CausedBy(err); culprit == nil || *culprit != 3 || !strings.Contains(err.Error(), "rank 1: group default/1/1: Barrier") {
			return fmt.Errorf("got %v, want that rank 3 of the job aborted", err)
		}
	}
	return pg.Barrier().Sync(ctx)
}

// A failure in the group of all ranks also breaks its subgroups.
func TestFailureBreaksSubgroups(t *testing.T) { commtest.OnRanks(t, 4, nil, failOutsideASubgroup) }

func failOutsideASubgroup(pg *comm.ProcessGroup) error {
	ctx := context.Background()
	defer pg.MonitoredBarrier(ctx) // no rank leaves before all ranks know of the failure
	sub, err := pg.Split(ctx, pg.Rank()/2, 0)
	if err != nil {
		return err
	}
	err = pg.Barrier().Sync(ctx) // when Sync returns, all ranks have called Split
	switch pg.Rank() {
	case 0:
		pg.Abort(errors.New("no luck"))
		return err
	case 2: // waits for rank 3, which is the other rank of this subgroup and makes no call in it
		err = sub.Barrier().Sync(ctx)
	default:
		for err == nil {
			err = pg.Barrier().Sync(ctx)
		}
	}
	if want := "process group aborted: by rank 0: no luck"; err == nil || !strings.Contains(err.Error(), want) {
		return fmt.Errorf("got %v, want %q", err, want)
	}
	if culprit := comm.CausedBy(err); culprit == nil || *culprit != 0 {
		return fmt.Errorf("%v is not caused by rank 0", err)
	}
	return nil
}

// The host backend rejects a call on memory that the host cannot address. The matching calls of
// the other ranks fail at once, with the same cause.
func TestDeviceMemoryIsRejectedByTheHostBackend(t *testing.T) {
	groups, _ := local(t, 2, &comm.Options{Timeout: time.Hour, ErrorMode: comm.CleanUpOnly})
	defer closeAll(groups)
	waiting := groups[0].AllReduce(vec(1), comm.Sum)
	func() {
		defer func() {
			if e, ok := recover().(*failure.UsageError); !ok || !strings.Contains(e.Error(), "rank 1: AllReduce: float32[1] is in device memory") {
				t.Errorf("panic with %v", e)
			}
		}()
		groups[1].AllReduce(device.NewTensor(device.DeviceBuffer(4096, 4, nil), device.Float32, 1), comm.Sum)
	}()
	if err := waiting.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "rank 1: AllReduce: float32[1] is in device memory") {
		t.Errorf("rank 0: %v", err)
	}
}
