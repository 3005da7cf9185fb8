package launcher

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/launcher/internal/failure"
)

// soon is a generous limit for events that must not take long. The shutdown timeout is
// longer, so a test that waits for it fails.
const soon = 25 * time.Second

// buffer receives a job's output. A test may read it while the job runs.
type buffer struct {
	mu    sync.Mutex
	data  bytes.Buffer
	await map[string]chan struct{}
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.data.Write(p)
	for text, ch := range b.await {
		if strings.Contains(b.data.String(), text) {
			close(ch)
			delete(b.await, text)
		}
	}
	return n, err
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.data.String()
}

// contains returns a channel that is closed when the buffer contains text.
func (b *buffer) contains(text string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	ch := make(chan struct{})
	if strings.Contains(b.data.String(), text) {
		close(ch)
		return ch
	}
	if b.await == nil {
		b.await = map[string]chan struct{}{}
	}
	b.await[text] = ch
	return ch
}

// job is a run under test.
type job struct {
	cfg     Config
	out     buffer
	err     buffer
	workers []Worker // written by Run
}

func shell(n int, script string) *job {
	return &job{cfg: Config{Args: []string{"bash", "-c", script}, Workers: n}}
}

// role returns a job whose workers are processes of this test binary in a role.
func role(t *testing.T, n int, name string, args ...string) *job {
	cmd := testkit.Self(t, name, args...)
	return &job{cfg: Config{Args: cmd.Args, Workers: n,
		Env: append(cmd.Env, "GORACE=atexit_sleep_ms=0")}} // or each worker takes a second longer under -race
}

// run runs the job, which must end soon, and checks that no worker is left.
func (j *job) run(t *testing.T) (*Result, error) {
	t.Helper()
	return j.runContext(t, t.Context())
}

func (j *job) runContext(t *testing.T, ctx context.Context) (*Result, error) {
	t.Helper()
	if j.cfg.Stdout == nil {
		j.cfg.Stdout = &j.out
	}
	if j.cfg.Stderr == nil {
		j.cfg.Stderr = &j.err
	}
	onStart := j.cfg.OnStart
	j.cfg.OnStart = func(w Worker) {
		j.workers = append(j.workers, w)
		if onStart != nil {
			onStart(w)
		}
	}
	start := time.Now()
	result, err := Run(ctx, &j.cfg)
	if took := time.Since(start); took > soon {
		t.Errorf("the job took %v", took)
	}
	for _, w := range j.workers {
		if syscall.Kill(w.PID, 0) != syscall.ESRCH {
			t.Errorf("rank %d (pid %d) is still there", w.Rank, w.PID)
		}
	}
	return result, err
}

func (j *job) fail(t *testing.T) *FailureError {
	t.Helper()
	_, err := j.run(t)
	var failed *FailureError
	if !errors.As(err, &failed) {
		t.Fatalf("got error %v, want a *FailureError; stderr:\n%s", err, &j.err)
	}
	return failed
}

func TestEnvironment(t *testing.T) {
	dir := t.TempDir()
	j := shell(2, `env > `+dir+`/$RANK`)
	j.cfg.Role, j.cfg.RunID, j.cfg.MaxRestarts = "trainer", "job7", 3
	j.cfg.Env = []string{"PATH=" + os.Getenv("PATH"), "OMP_NUM_THREADS=5", "RANK=77"}
	if _, err := j.run(t); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{}
	data, err := os.ReadFile(dir + "/1")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		env[name] = value
	}
	want := map[string]string{
		"LOCAL_RANK": "1", "RANK": "1", "GROUP_RANK": "0", "ROLE_RANK": "1", "ROLE_NAME": "trainer",
		"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1", "ROLE_WORLD_SIZE": "2",
		"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3",
		"TORCHELASTIC_RUN_ID": "job7", "TORCHELASTIC_USE_AGENT_STORE": "True",
		"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "OMP_NUM_THREADS": "5", "NCCL_SOCKET_IFNAME": "lo",
		"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "30",
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if env[name] != want[name] {
			t.Errorf("%s=%q, want %q", name, env[name], want[name])
		}
	}
	if len(env[jobenv.JobIDVar]) < 20 || env["MASTER_PORT"] == "" || !strings.HasSuffix(env["TORCHELASTIC_ERROR_FILE"], "/1/error.json") || !strings.HasSuffix(env["GODDP_STOP_FILE"], "/1/stop") {
		t.Errorf("%s=%q MASTER_PORT=%q TORCHELASTIC_ERROR_FILE=%q GODDP_STOP_FILE=%q",
			jobenv.JobIDVar, env[jobenv.JobIDVar], env["MASTER_PORT"], env["TORCHELASTIC_ERROR_FILE"], env["GODDP_STOP_FILE"])
	}
}

// A variable that the user has set is kept. The default of OMP_NUM_THREADS is torchrun's: 1 if there are several workers,
// unset if there is one.
func TestEnvironmentDefaultsYield(t *testing.T) {
	for chosen, has := range map[string]struct{ errorHandling, threads bool }{
		"X=1": {true, true}, "TORCH_NCCL_BLOCKING_WAIT=1": {false, true}, "TORCH_NCCL_ASYNC_ERROR_HANDLING=3": {false, true}, "OMP_NUM_THREADS=3": {true, false},
		"NCCL_SOCKET_IFNAME=eth7": {true, true},
	} {
		j := shell(2, `env`)
		j.cfg.Env = []string{"PATH=" + os.Getenv("PATH"), chosen}
		if _, err := j.run(t); err != nil {
			t.Fatal(err)
		}
		for entry, isSet := range map[string]bool{chosen: true, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1": has.errorHandling, "OMP_NUM_THREADS=1": has.threads} {
			if got := strings.Contains(j.out.String(), "]: "+entry+"\n"); got != isSet {
				t.Errorf("with %s: %s is set: %v", chosen, entry, got)
			}
		}
	}
	one := shell(1, `echo "${OMP_NUM_THREADS-unset}"`)
	one.cfg.Env = []string{"PATH=" + os.Getenv("PATH")}
	if _, err := one.run(t); err != nil || one.out.String() != "[default0]: unset\n" {
		t.Errorf("one worker: %v, OMP_NUM_THREADS %q", err, &one.out)
	}
}

// Rank 2 of 4 dies in several ways. The other ranks notice this within a millisecond,
// write error files, and exit.
func TestCauseAndEchoes(t *testing.T) {
	for _, test := range []struct {
		death  string
		status failure.Status
		code   int
	}{
		{"wait", failure.Status{Signal: syscall.SIGKILL}, 137},
		// golaunch stops it before it can exit by itself.
		{"error-then-linger", failure.Status{Signal: syscall.SIGTERM}, 1},
	} {
		t.Run(test.death, func(t *testing.T) {
			j := role(t, 4, "peers", t.TempDir(), test.death)
			if test.death == "wait" {
				pid := 0
				j.cfg.OnStart = func(w Worker) {
					if w.Rank == 2 {
						pid = w.PID
						ready := j.out.contains("connected")
						go func() {
							<-ready
							_ = syscall.Kill(pid, syscall.SIGKILL)
						}()
					}
				}
			}
			failed := j.fail(t)
			root := failed.root
			if root.Rank != 2 || root.Status != test.status || root.PID != j.workers[2].PID {
				t.Fatalf("root cause: rank %d (pid %d) %s; want rank 2 (pid %d) %s\n%s",
					root.Rank, root.PID, root.Status, j.workers[2].PID, test.status, failed.Report())
			}
			if code := ExitCode(failed); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			if n := len(failed.others) + len(failed.stopped); n != 3 {
				t.Errorf("%d workers in the rest of the report, want 3", n)
			}
			for _, want := range []string{"rank      : 2 (local_rank: 2)", fmt.Sprintf("(pid: %d), killed by %s", root.PID, failure.SignalName(test.status.Signal))} {
				if report := failed.Report(); !strings.Contains(report, want) {
					t.Errorf("the report lacks %q:\n%s", want, report)
				}
			}
		})
	}
}

func TestStopsOthers(t *testing.T) {
	for name, script := range map[string]string{
		"sleeping": `exec sleep 1000`,
		// Suspended, it would never act on a SIGTERM alone.
		"suspended": `kill -STOP $$`,
	} {
		t.Run(name, func(t *testing.T) {
			pid := t.TempDir() + "/pid"
			// Rank 0 fails once rank 1 sleeps (S) or is suspended (T).
			j := shell(2, `if [ $RANK = 1 ]; then echo $$ > `+pid+`; `+script+`; fi
				until read -r p < `+pid+` && grep -q '^State:.*[ST] (s' /proc/$p/status; do :; done 2>/dev/null
				exit 5`)
			failed := j.fail(t)
			if failed.root.Rank != 0 || failed.root.Status.Code != 5 || len(failed.stopped) != 1 {
				t.Errorf("got %s", failed.Report())
			}
		})
	}
}

func TestIgnoredSIGTERM(t *testing.T) {
	ready := t.TempDir() + "/ready"
	j := shell(2, `if [ $RANK = 1 ]; then trap "" TERM; echo > `+ready+`; while :; do sleep 0.1; done; fi
		until [ -e `+ready+` ]; do sleep 0.01; done; exit 5`)
	j.cfg.ShutdownTimeout = 200 * time.Millisecond
	failed := j.fail(t)
	if len(failed.stopped) != 1 || failed.root.Rank != 0 {
		t.Errorf("got %s", failed.Report())
	}
}

// A worker may be a shell whose child receives the signal as well. The child gets the
// rest of the shutdown timeout to save its state, even if the shell has ended.
func TestGrace(t *testing.T) {
	dir := t.TempDir()
	inner := `trap "sleep 0.3; echo saved > ` + dir + `/state; echo saved; exit 0" TERM; echo > ` + dir + `/ready; while :; do sleep 0.01; done`
	j := shell(2, `if [ $RANK = 1 ]; then bash -c '`+inner+`'; echo never; fi
		until [ -e `+dir+`/ready ]; do sleep 0.01; done; exit 5`)
	j.fail(t)
	if _, err := os.Stat(dir + "/state"); err != nil {
		t.Error("the worker's child was not given the time to save")
	}
	if !strings.Contains(j.out.String(), "[default1]: saved\n") {
		t.Errorf("its output is missing: %q", &j.out)
	}
}

// In a program that cannot run as a reaper, the end of an attempt kills the workers'
// process groups.
func TestReaperGoroutine(t *testing.T) {
	canReap.Store(false)
	defer canReap.Store(true)
	j := shell(2, `sleep 1000 & echo "child $!"; [ $RANK = 0 ] || exit $((1 - TORCHELASTIC_RESTART_COUNT))`)
	j.cfg.MaxRestarts = 1
	result, err := j.run(t)
	if err != nil || result.Restarts != 1 {
		t.Errorf("got %+v, %v", result, err)
	}
	children := regexp.MustCompile(`child (\d+)`).FindAllStringSubmatch(j.out.String(), -1)
	if len(children) < 3 { // rank 0 of the first attempt may be stopped before
		t.Errorf("stdout is %q", &j.out)
	}
	for _, m := range children {
		var pid int
		fmt.Sscan(m[1], &pid)
		expectGone(t, pid)
	}
}

// If the reaper is a goroutine, the workers die when their agent is killed.
func TestKilledAgent(t *testing.T) {
	testkit.Need(t, testkit.Linux) // only Linux has parent-death signals
	cmd := testkit.Self(t, "agent")
	cmd.Env = append(cmd.Env, "TMPDIR="+t.TempDir())
	p := testkit.Start(t, cmd)
	var pid int
	if _, err := fmt.Sscanf(p.Await(`\[default0\]: pid`, 1).Text, "[default0]: pid %d", &pid); err != nil {
		t.Fatal(err)
	}
	p.Signal(syscall.SIGKILL)
	p.Wait()
	expectGone(t, pid)
}

// expectGone waits for a process that is not a child to disappear or be a zombie.
func expectGone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(soon)
	for {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil || strings.Contains(string(status), "State:\tZ") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is still there:\n%s", pid, status)
		}
		time.Sleep(time.Millisecond)
	}
}

// exclusive counts writes that begin while another write is in progress.
type exclusive struct {
	io.Writer
	busy     atomic.Bool
	overlaps atomic.Int64
}

func (e *exclusive) Write(p []byte) (int, error) {
	if !e.busy.CompareAndSwap(false, true) {
		e.overlaps.Add(1)
	}
	runtime.Gosched()
	defer e.busy.Store(false)
	return e.Writer.Write(p)
}

func TestOutputDoesNotInterleave(t *testing.T) {
	const workers = 4
	j := role(t, workers, "chatter")
	terminal := &exclusive{Writer: &j.out} // it is both
	j.cfg.Stdout, j.cfg.Stderr = terminal, terminal
	if _, err := j.run(t); err != nil {
		t.Fatal(err)
	}
	if n := terminal.overlaps.Load(); n > 0 {
		t.Errorf("%d writes overlapped others", n)
	}
	line := regexp.MustCompile(fmt.Sprintf(`^\[default(\d)\]: <(\d) (out|err) (\d+) x{%d}>$`, chatterWidth))
	next := map[string]string{}
	lines := strings.Split(strings.TrimSuffix(j.out.String(), "\n"), "\n")
	for _, text := range lines {
		m := line.FindStringSubmatch(text)
		if m == nil || m[1] != m[2] {
			t.Fatalf("broken line %q", text)
		}
		stream := m[2] + m[3]
		if want := next[stream]; want != "" && want != m[4] {
			t.Fatalf("stream %s: line %s, want %s", stream, m[4], want)
		}
		var i int
		fmt.Sscan(m[4], &i)
		next[stream] = fmt.Sprint(i + 1)
	}
	if want := workers * 2 * chatterLines; len(lines) != want {
		t.Errorf("%d lines, want %d", len(lines), want)
	}
}

func TestLogFolderOfAStrangerIsRefused(t *testing.T) {
	testkit.Need(t, testkit.Root)
	j := shell(1, "exit 0")
	j.cfg.LogDir = t.TempDir()
	if err := errors.Join(os.Chown(j.cfg.LogDir, 65534, 65534), os.Chmod(j.cfg.LogDir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := j.run(t); err == nil || !strings.Contains(err.Error(), "the folder for logs: "+j.cfg.LogDir+" belongs to user 65534") {
		t.Errorf("got %v", err)
	}
	if left, err := os.ReadDir(j.cfg.LogDir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// The folder with the workers' files vanishes while they run. The next attempt has it again. Its lock, which
// systemd-tmpfiles heeds, would keep it.
func TestRestartMakesTheFolderAgain(t *testing.T) {
	for name, logs := range map[string]string{"temporary": "", "logs": filepath.Join(t.TempDir(), "logs")} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			scratch := t.TempDir()
			j := shell(1, `dir=$(dirname $GODDP_STOP_FILE)/../..
				[ -e $GODDP_TOKEN_FILE ] && echo "attempt $TORCHELASTIC_RESTART_COUNT of $(stat -c %a $dir)"
				for d in $dir `+scratch+`; do flock --nonblock --shared $d true && echo "$d is not locked"; done
				rm -r `+cmp.Or(logs, "$dir")+`; exit $((1 - TORCHELASTIC_RESTART_COUNT))`)
			j.cfg.LogDir, j.cfg.MaxRestarts, j.cfg.Scratch = logs, 1, scratch
			if _, err := j.run(t); err != nil || j.out.String() != "[default0]: attempt 0 of 700\n[default0]: attempt 1 of 700\n" {
				t.Errorf("%v; stdout %q", err, &j.out)
			}
			if said := j.err.String(); strings.Contains(said, "no such file") {
				t.Errorf("stderr %q", said)
			}
		})
	}
}

func TestFilesAndFilter(t *testing.T) {
	j := shell(3, `printf 'out %s\r\npart' $RANK; echo "err $RANK" >&2`)
	j.cfg.LogDir = filepath.Join(t.TempDir(), "logs")
	j.cfg.RunID = "a/b"
	j.cfg.LocalRanksFilter = []int{1, 2}
	var err error
	if j.cfg.Redirects, err = ParseStreamMap("0:3,1:2"); err != nil {
		t.Fatal(err)
	}
	j.cfg.Tee = allStreams(stdoutStream)
	result, err := j.run(t)
	if err != nil {
		t.Fatal(err)
	}
	if dir, base := filepath.Split(result.LogDir); filepath.Clean(dir) != j.cfg.LogDir || !strings.HasPrefix(base, "a_b_") {
		t.Errorf("log folder %s", result.LogDir)
	}
	file := func(local int, name string) string {
		data, err := os.ReadFile(filepath.Join(result.LogDir, "attempt_0", fmt.Sprint(local), name))
		if err != nil {
			return "missing"
		}
		return string(data)
	}
	for local, wantErr := range []string{"err 0\n", "err 1\n", "missing"} {
		if got, want := file(local, stdoutLog), fmt.Sprintf("out %d\r\npart", local); got != want {
			t.Errorf("stdout.log of %d: %q, want %q", local, got, want)
		}
		if got := file(local, stderrLog); got != wantErr {
			t.Errorf("stderr.log of %d: %q, want %q", local, got, wantErr)
		}
	}
	// 0 is filtered and redirected, 1's stderr is redirected, 2 is shown.
	lines := strings.Split(strings.TrimSpace(j.out.String()), "\n")
	slices.Sort(lines)
	if want := []string{"[default1]: out 1", "[default1]: part", "[default2]: out 2", "[default2]: part"}; !slices.Equal(lines, want) {
		t.Errorf("stdout %q, want %q", lines, want)
	}
	if got := j.err.String(); got != "[default2]: err 2\n" {
		t.Errorf("stderr %q", got)
	}
}

func TestSignals(t *testing.T) {
	t.Run("second kills", func(t *testing.T) {
		j := shell(1, `trap "" TERM; echo ready; while :; do sleep 0.01; done`)
		signals := make(chan os.Signal, 2)
		j.cfg.Signals = signals
		ready := j.out.contains("ready")
		go func() {
			<-ready
			signals <- syscall.SIGTERM
			signals <- syscall.SIGINT // another SIGTERM would count as the first one
		}()
		if _, err := j.run(t); ExitCode(err) != 143 || !strings.Contains(j.err.String(), "golaunch: killing rank 0") {
			t.Errorf("got %v\n%s", err, &j.err)
		}
	})
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		j := shell(2, `exec sleep 1000`)
		cause := errors.New("enough")
		j.cfg.OnStart = func(w Worker) {
			if w.Rank == 1 {
				cancel(cause)
			}
		}
		if _, err := j.runContext(t, ctx); err != cause {
			t.Errorf("got %v, want %v", err, cause)
		}
	})
}

func TestRestarts(t *testing.T) {
	dir := t.TempDir()
	script := `echo "attempt $TORCHELASTIC_RESTART_COUNT of rank $RANK"
		if [ $TORCHELASTIC_RESTART_COUNT = 2 ]; then exit 0; fi
		if [ $RANK = 1 ]; then exit 9; fi; setsid sleep 1000 & exec sleep 1000`
	j := shell(2, script)
	j.cfg.MaxRestarts, j.cfg.LogDir = 3, dir
	result, err := j.run(t)
	if err != nil {
		t.Fatal(err)
	}
	if result.Restarts != 2 || len(j.workers) != 6 || j.workers[5].Attempt != 2 {
		t.Errorf("%d restarts, workers %v", result.Restarts, j.workers)
	}
	if want := "golaunch: restart 2 of 3: bash failed: rank 1"; !strings.Contains(j.err.String(), want) {
		t.Errorf("stderr lacks %q:\n%s", want, &j.err)
	}

	j = shell(2, script)
	j.cfg.MaxRestarts = 1
	if failed := j.fail(t); failed.restarts != 1 || failed.root.Attempt != 1 || ExitCode(failed) != 9 {
		t.Errorf("got %s", failed.Report())
	}
}

// The error of a program that cannot be started says what the system's error leaves open.
func TestStartError(t *testing.T) {
	dir := t.TempDir()
	for name, test := range map[string]struct {
		text string
		err  syscall.Errno
		want string
	}{
		"text":          {"no program\n", syscall.ENOEXEC, "without a first line such as #!/bin/sh"},
		"interpreter":   {"#!/none/python\n", syscall.ENOENT, "the program is there, but not its interpreter"},
		"no permission": {"#!" + dir + "\n", syscall.EACCES, "may not execute the program or its interpreter"},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(test.text), 0o755); err != nil {
			t.Fatal(err)
		}
		j := &job{cfg: Config{Args: []string{path}, Workers: 2, MaxRestarts: 3}}
		_, err := j.run(t)
		var start *startError
		if !errors.As(err, &start) || !errors.Is(err, test.err) || ExitCode(err) != 2 || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, exit code %d", name, err, ExitCode(err))
		}
	}
}

func TestErrorFileInReport(t *testing.T) {
	outer := filepath.Join(t.TempDir(), "outer.json")
	j := shell(2, `if [ $RANK = 0 ]; then exec sleep 1000; fi
		echo '{"message": {"message": "ValueError: bad batch", "extraInfo": {"py_callstack": "File \"train.py\", line 7", "timestamp": "1"}}}' > $TORCHELASTIC_ERROR_FILE
		exit 6`)
	j.cfg.ErrorFile = outer
	failed := j.fail(t)
	for _, want := range []string{"ValueError: bad batch", `File "train.py", line 7`} {
		if !strings.Contains(failed.Report(), want) {
			t.Errorf("the report lacks %q:\n%s", want, failed.Report())
		}
	}
	if !strings.Contains(failed.Error(), "ValueError: bad batch") {
		t.Errorf("got %q", failed.Error())
	}
	var doc struct {
		Message struct {
			Message   string
			ErrorCode int
			ExtraInfo map[string]string
		}
	}
	data, err := os.ReadFile(outer)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Message.Message != "ValueError: bad batch" || doc.Message.ErrorCode != 6 || doc.Message.ExtraInfo["timestamp"] != "1" {
		t.Errorf("got %s", data)
	}
}

// A file that is no valid error file does not block the launcher, and the log says what
// is wrong with it.
func TestErrorFileThatIsNone(t *testing.T) {
	for script, want := range map[string]string{
		`mkfifo $TORCHELASTIC_ERROR_FILE`:                                   "error.json is not a regular file",
		`truncate -s 1048577 $TORCHELASTIC_ERROR_FILE`:                      "error.json is too large: 1048577 bytes, want at most 1048576",
		`head -c 1048576 /dev/zero | tr '\0' '[' >$TORCHELASTIC_ERROR_FILE`: "error.json: ",
	} {
		outer := filepath.Join(t.TempDir(), "outer.json")
		j := shell(1, script+"; exit 6")
		j.cfg.ErrorFile = outer
		if failed := j.fail(t); failed.root.Status.Code != 6 || !strings.Contains(j.err.String(), want) {
			t.Errorf("%s: got %v, stderr %q, want %q", script, failed, &j.err, want)
		}
		if data, err := os.ReadFile(outer); err != nil || !strings.Contains(string(data), `"errorCode":6`) {
			t.Errorf("%s: told outside: %q, %v", script, data, err)
		}
	}
}

// The report of a worker that exits shows the end of its stderr.
func TestExitIsNoCrash(t *testing.T) {
	failed := shell(1, `for i in {1..50}; do echo "line $i" >&2; done; exit 2`).fail(t)
	if report := failed.Report(); len(failed.root.Crash) != 0 || !strings.Contains(report, "| line 31\n") || !strings.Contains(report, "| line 50\n") || strings.Contains(report, "| line 30\n") {
		t.Errorf("an exit with 2 is reported as\n%s", report)
	}
}

// The report shows a Go program's panic once: from the error file if there is one, else
// from stderr.
func TestAPanicIsReportedOnce(t *testing.T) {
	const script = `%s
		printf 'panic: bad batch\n\ngoroutine 1 [running]:\nmain.train()\n\t/train.go:7 +0x1d\n' >&2
		exit 2`
	const file = `echo '{"message": {"message": "panic: bad batch", "extraInfo": {"py_callstack": "goroutine 1 [running]:\nmain.train()\n\t/train.go:7 +0x1d\n"}}}' > $TORCHELASTIC_ERROR_FILE`
	for name, before := range map[string]string{"with an error file": file, "without": ":"} {
		report := shell(1, fmt.Sprintf(script, before)).fail(t).Report()
		if n := strings.Count(report, "main.train /train.go:7"); n != 1 || !strings.Contains(report, "panic: bad batch") {
			t.Errorf("%s the place is there %d times:\n%s", name, n, report)
		}
	}
	// If the program panicked twice, only the runtime's output has the first panic.
	report := shell(1, fmt.Sprintf(strings.Replace(script, "bad batch\\n", "no labels\\n\\tpanic: bad batch\\n", 1), file)).fail(t).Report()
	if !strings.Contains(report, "panic: no labels") {
		t.Errorf("the first panic is not there:\n%s", report)
	}
}

// When all ranks panic, the console shows why each did, and the stack of one.
func TestPanicOfAllRanksShowsOneStack(t *testing.T) {
	for _, restarts := range []int{0, 1} {
		j := role(t, 4, "panic")
		j.cfg.MaxRestarts = restarts
		failed := j.fail(t)
		output := j.err.String()
		if n := strings.Count(output, "]: panic: bad batch"); n < 1+restarts+len(failed.others) {
			t.Errorf("%d ranks say why they panicked:\n%s", n, output)
		}
		if strings.Contains(output, "goroutine ") || strings.Count(output, "in the program, innermost call first:") != restarts+1 ||
			!strings.HasSuffix(output, failed.Report()) {
			t.Errorf("with %d restarts, the console shows\n%s", restarts, output)
		}
	}
}

// A worker's stack is shown in full where no report shows it: when the worker goes on, when
// it is asked to print all goroutines, and when it ends otherwise than by a failure.
func TestStackOutsideOfAReportIsShown(t *testing.T) {
	const stack = "panic: bad batch\n\ngoroutine 1 [running]:\nmain.train()\n\t/train.go:7 +0x1d\n"
	for name, end := range map[string]string{
		"goes on":        "recovered\n",
		"all goroutines": "\ngoroutine 2 [select]:\nmain.read()\n\t/read.go:3 +0x1d\n",
		"exits with 0":   "",
	} {
		j := shell(1, fmt.Sprintf("printf '%s' >&2", stack+end))
		j.cfg.LinePrefix = "0>"
		if _, err := j.run(t); err != nil {
			t.Error(err)
		}
		if want := "0>" + strings.ReplaceAll(strings.TrimSuffix(stack+end, "\n"), "\n", "\n0>") + "\n"; j.err.String() != want {
			t.Errorf("%s: got %q, want %q", name, &j.err, want)
		}
	}
}

// Run keeps the records of workers that recorded a failure and then succeeded.
func TestRecordsOfASuccess(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	j := shell(1, `mkdir -p $GODDP_FLIGHT_DIR && echo {} > $GODDP_FLIGHT_DIR/rank_0.json`)
	result, err := j.run(t)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(result.LogDir, "attempt_0", flightFolder, "rank_0.json")
	if _, err := os.Stat(file); result.LogDir == "" || err != nil {
		t.Errorf("%q: %v", file, err)
	}
	if want := "flight records are in " + result.LogDir; !strings.Contains(j.err.String(), want) {
		t.Errorf("%q is not said:\n%s", want, &j.err)
	}
}

func TestTemporaryFolder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	expect := func(want int) {
		t.Helper()
		entries, err := os.ReadDir(os.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != want {
			t.Errorf("temporary folder holds %v, want %d", entries, want)
		}
	}
	if _, err := shell(1, `echo e > $TORCHELASTIC_ERROR_FILE`).run(t); err != nil {
		t.Fatal(err)
	}
	expect(0)
	shell(1, `exit 1`).fail(t)
	expect(0)
	j := shell(1, `echo hi`)
	j.cfg.Tee = allStreams(stdoutStream)
	result, err := j.run(t)
	if err != nil {
		t.Fatal(err)
	}
	expect(1)
	if !strings.Contains(j.err.String(), result.LogDir) {
		t.Errorf("stderr %q does not say where the logs are", &j.err)
	}
}

// The reports of many workers do not stop the reaper while the agent asks it to start more.
func TestManyWorkers(t *testing.T) {
	testkit.Long(t)
	j := &job{cfg: Config{Args: []string{"true"}, Workers: 300}}
	if _, err := j.run(t); err != nil {
		t.Errorf("%v; stderr:\n%s", err, &j.err)
	}
}

func TestBadConfig(t *testing.T) {
	for _, cfg := range []*Config{
		nil,
		{},
		{Args: []string{"true"}, Workers: -1},
		{Args: []string{"true"}, MaxRestarts: -1},
		{Args: []string{"true"}, LocalRanksFilter: []int{1}},
		{Args: []string{"true"}, Workers: 2, Tee: StreamMap{byLocal: map[int]streamSet{2: stdoutStream}}},
	} {
		if result, err := Run(t.Context(), cfg); err == nil || result != nil {
			t.Errorf("Run(%+v) = %v, %v", cfg, result, err)
		}
	}
}
