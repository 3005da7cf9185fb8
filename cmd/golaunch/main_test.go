package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/election/etcd"
	"github.com/goddp/goddp/launcher"
)

// mainVar makes the test binary run golaunch.
const mainVar = "GOLAUNCH_TEST_MAIN"

// markVar is in the environment of every process of a test's job, so that the test can
// find these processes itself.
const markVar = "GOLAUNCH_TEST_MARK"

// soon is a generous limit for events that must not take long.
const soon = 25 * time.Second

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == election.Program {
		if election.Serve(os.Stdin, os.Stdout, etcd.New) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	launcher.ReaperMain()
	if os.Getenv(joinVar) != "" && os.Getenv("RANK") != "" {
		comm.Main(join)
	}
	if os.Getenv(mainVar) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// golaunch returns a command that runs golaunch with extra variables NAME=value.
func golaunch(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), mainVar+"=1", markVar+"="+t.Name(),
		"GORACE=atexit_sleep_ms=0") // or each run takes a second longer under -race
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// outcome is the result of a run of golaunch.
type outcome struct {
	code           int
	stdout, stderr string
}

func runIt(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	return finish(t, golaunch(t, env, args...))
}

func finish(t *testing.T, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func TestExitCodes(t *testing.T) {
	for script, want := range map[string]int{
		`exit 0`:                          0,
		`exit 3`:                          3,
		`[ $RANK != 1 ] || exit 7`:        7,
		`[ $RANK != 1 ] || kill -9 $$`:    137,
		`[ $RANK != 1 ] || kill -SEGV $$`: 139,
	} {
		got := runIt(t, nil, "--nproc-per-node=2", "bash", "-c", script)
		if got.code != want {
			t.Errorf("%q: exit code %d, want %d; stderr:\n%s", script, got.code, want, got.stderr)
		}
		if failed := strings.Contains(got.stderr, "bash FAILED"); failed != (want != 0) {
			t.Errorf("%q: a report is shown: %v; stderr:\n%s", script, failed, got.stderr)
		}
	}
}

func TestReportShowsStderr(t *testing.T) {
	got := runIt(t, nil, "bash", "-c", `for i in {1..50}; do echo "line $i" >&2; done; exit 1`)
	_, report, _ := strings.Cut(got.stderr, "Root Cause (first observed failure):")
	if !strings.Contains(report, "| line 31\n") || !strings.Contains(report, "| line 50\n") || strings.Contains(report, "| line 30\n") {
		t.Errorf("the report does not show the last 20 lines:\n%s", got.stderr)
	}
}

func TestLectureLine(t *testing.T) {
	got := runIt(t, nil, "--nnodes=1", "--nproc_per_node=2", "--rdzv_id=100", "--rdzv_backend=c10d",
		"--rdzv_endpoint=localhost:29400", "bash", "-c", `echo "rank $RANK: of $WORLD_SIZE in $TORCHELASTIC_RUN_ID"`, "--not-a-flag")
	for _, want := range []string{"rank 0: of 2 in 100\n", "rank 1: of 2 in 100\n"} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("stdout %q lacks %q; stderr:\n%s", got.stdout, want, got.stderr)
		}
	}
}

func TestStreamsStayApart(t *testing.T) {
	got := runIt(t, []string{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE=${role_name}/${local_rank}/${rank}>"},
		"--role", "eval", "bash", "-c", `echo out; echo err >&2; printf partial`)
	if want := (outcome{0, "eval/0/0>out\neval/0/0>partial\n", "eval/0/0>err\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestUsageErrors(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	empty := filepath.Join(dir, "empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "job.token")
	if err := os.WriteFile(open, []byte("the secret of the job"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(dir, "lib")
	if err := os.Mkdir(library, 0o755); err != nil {
		t.Fatal(err)
	}
	write("lib/lib.go", "package lib\n")
	for _, test := range []struct {
		args string
		env  string
		want string // in stderr
	}{
		{"", "", "no program"},
		{"--nproc-per-node 2", "", "no program"},
		{"--frobnicate true", "", "unknown flag: --frobnicate\n"},
		{"--nproc 2 true", "", "unknown flag: --nproc\n"},
		{"-np 2 true", "", "unknown shorthand flag: 'n' in -np\n"},
		{"-z true", "", "unknown shorthand flag: 'z' in -z\n"},
		{"--run-path train.py", "", "--run-path train.py: want the absolute path"},
		{"--run-path /none.py", "", "/none.py: no such file"},
		{"--run-path -m train", "", "--run-path excludes"},
		{"--print-completion bash true", "", `--print-completion "bash": golaunch has no such thing`},
		{"--numa-binding node true", "", `--numa-binding "node": golaunch has no such thing`},
		{"--duplicate-stdout-filters a true", "", "--local-ranks-filter"},
		{"--duplicate-stderr-filters a true", "", "--tee 2"},
		{"true", "PET_RUN_PATH=1", "--run-path true: want the absolute path"},
		{"true", "PET_NUMA_BINDING=node", `PET_NUMA_BINDING="node": golaunch has no such thing`},
		{"--nproc-per-node", "", "nproc-per-node"},
		{"--nproc-per-node x true", "", `--nproc-per-node "x": want a number`},
		{"--nproc-per-node 0 true", "", `--nproc-per-node "0"`},
		{"--nproc_per_node -3 true", "", `--nproc-per-node "-3"`},
		{"--nproc-per-node gpu true", "CUDA_VISIBLE_DEVICES=", "no GPU"},
		{"--nnodes 2 true", "", "--nnodes 2 needs --master-addr"},
		{"--nnodes 2 --master-addr h true", "", "--token-file or GODDP_TOKEN_FILE"},
		{"--nnodes 2 --master-addr h --token-file /nonexistent true", "", `golaunch: --token-file "/nonexistent": no such file or directory` + "\n"},
		{"--hosts a:1 --token-file /nonexistent true", "", `golaunch: --token-file "/nonexistent": no such file or directory` + "\n"},
		{"--token-file " + open + " true", "", fmt.Sprintf("golaunch: --token-file %q: others can read or change it (mode 0644): chmod 600 %s\n", open, open)},
		{"true", "GODDP_TOKEN_FILE=" + empty, fmt.Sprintf("golaunch: GODDP_TOKEN_FILE=%q: is a directory\n", empty)},
		{"true", "GODDP_TOKEN=short", "golaunch: GODDP_TOKEN: a secret of 5 bytes, want 16 to 4096\n"},
		{"--log-max-size 1MiB true", "", "--log-max-size 1048576 limits the files of --tee and --redirects, and there are none"},
		{"--log-max-size 1MiB --tee 0 --log-dir " + empty + " true", "", "and there are none"},
		{"--nnodes 1:4 true", "", "want one number for --rdzv-backend static"},
		{"--nnodes 4:1 true", "", `--nnodes "4:1": want a number of nodes, or MIN:MAX`},
		{"--nnodes 0 true", "", `--nnodes "0": want a number of nodes`},
		{"--nnodes 2:20:30 true", "", "want a number of nodes"},
		{"--node-rank 1 true", "", "the only node has rank 0"},
		{"--max-restarts -1 true", "", `--max-restarts "-1"`},
		{"--master-port 99999 true", "", `--master-port "99999"`},
		{"--master-addr 127.0.0.1:5 true", "", "--master-addr"},
		{"--nnodes 2 --node-rank 2 true", "", "--node-rank 2 in a job of 2 nodes"},
		{"--nnodes 2 --standalone true", "", "--standalone is one node"},
		{"--rdzv-backend etcd-v2 true", "", "etcd, which is version 3"},
		{"--rdzv-backend zookeeper true", "", `--rdzv-backend "zookeeper": want static, c10d or etcd`},
		{"--rdzv-backend c10d --nnodes 2 true", "", "--rdzv-backend c10d needs --rdzv-endpoint"},
		{"--rdzv-endpoint host:port true", "", `--rdzv-endpoint "host:port": want host or host:port`},
		{"--rdzv-endpoint http://host:2379 true", "", "want host or host:port"},
		{"--rdzv-endpoint a,b --rdzv-backend c10d --nnodes 2 true", "", "want one endpoint"},
		{"--rdzv-conf is_host=1 true", "", `"is_host" is not one of cacert, cert, join_timeout`},
		{"--rdzv-conf join_timeout=soon true", "", "join_timeout: want a number of seconds"},
		{"--rdzv-conf protocol=gopher true", "", "protocol: want http or https"},
		{"--rdzv-backend etcd --rdzv-endpoint h --nnodes 2 --rdzv-conf cacert=x true", "", "cacert and cert need protocol=https"},
		{"--rdzv-backend etcd --rdzv-endpoint h --nnodes 2 --rdzv-conf protocol=https,cert=x true", "", "cert and key need each other"},
		{"true", "PET_RDZV_BACKEND=x", `PET_RDZV_BACKEND="x"`},
		{"--shutdown-timeout soon true", "", "--shutdown-timeout"},
		{"--monitor-interval 0 true", "", "--monitor-interval"},
		{"--tee 4 true", "", `--tee "4"`},
		{"--redirects 0:3,0:1 true", "", "local rank 0 is named twice"},
		{"--redirects 2:3 true", "", "local rank 2, but there are 1 workers"},
		{"--local-ranks-filter 1 true", "", "local rank 1, but there are 1 workers"},
		{"--signals-to-handle SIGNAL true", "", "SIGNAL"},
		{"--signals-to-handle SIGKILL true", "", "SIGKILL cannot be handled"},
		{"-m --no-python mod", "", "--no-python"},
		{"true", "PET_NPROC_PER_NODE=many", `PET_NPROC_PER_NODE="many"`},
		{"true", "PET_NNODES=three", `PET_NNODES="three"`},
		{"true", "PET_STANDALONE=perhaps", `PET_STANDALONE="perhaps"`},
		{"true", "GODDP_FLIGHT_ENTRIES=many", `GODDP_FLIGHT_ENTRIES is "many"`},
		{"true", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=-1", `TORCH_ELASTIC_SHUTDOWN_TIMEOUT="-1"`},
		{"no-such-program-anywhere", "", "no-such-program-anywhere: there is no such program"},
		{"./no-such-file", "", "./no-such-file: there is no such program"},
		{filepath.Join(dir, "none.py"), "", "none.py: no such file"},
		{filepath.Join(dir, "none.go"), "", "none.go: no such file"},
		{write("data", "x"), "", "data is not executable"},
		{empty, "", "empty is a folder without Go files"},
		{library, "", "lib holds package lib; want package main"},
		{"github.com/goddp/goddp/launcher", "", "launcher is package launcher; want package main"},
		{"github.com/goddp/goddp/none", "", "github.com/goddp/goddp/none"},
		{write("x.py", ""), "PYTHON_EXEC=/no/python", "/no/python"},
	} {
		cmd := golaunch(t, []string{test.env}, strings.Fields(test.args)...)
		got := finish(t, cmd)
		lines := strings.Count(got.stderr, "\n")
		if got.code != 2 || lines < 1 || lines > 3 || got.stdout != "" || !strings.Contains(got.stderr, test.want) {
			t.Errorf("%s golaunch %s: exit code %d, stdout %q, stderr, which should have %q:\n%s",
				test.env, test.args, got.code, got.stdout, test.want, got.stderr)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	for arg, want := range map[string]string{
		"--help": "--master-port port the workers' MASTER_PORT (default: a free one); the nodes meet at another, 29400 or that of --rdzv-endpoint ",
		"-h":     "PROGRAM", "--version": "golaunch ",
	} {
		got := runIt(t, []string{"PET_NNODES=nonsense"}, arg)
		text := strings.Join(strings.Fields(got.stdout), " ") + " " // the lines are wrapped
		if got.code != 0 || !strings.Contains(text, want) || got.stderr != "" {
			t.Errorf("%s: got %+v", arg, got)
		}
	}
}

func TestVariables(t *testing.T) {
	env := []string{"PET_NPROC_PER_NODE=3", "PET_ROLE=petrole", "PET_RDZV_ID=petid", "PET_STANDALONE=1", "PET_MAX_RESTARTS=2"}
	show := []string{"bash", "-c", `echo "$WORLD_SIZE $ROLE_NAME $TORCHELASTIC_RUN_ID $TORCHELASTIC_MAX_RESTARTS"`}
	if got := runIt(t, env, show...); strings.Count(got.stdout, "3 petrole petid 2\n") != 3 {
		t.Errorf("got %+v", got)
	}
	// golaunch does the same without these flags, or they have no effect.
	idle := []string{"PET_RUN_PATH=0", "PET_START_METHOD=spawn", "PET_LOGS_SPECS=x"}
	if got := runIt(t, idle, "--start-method=fork", "--local_addr", "10.0.0.1", "--event-log-handler", "null", "echo", "ran"); got.stdout != "[default0]: ran\n" {
		t.Errorf("got %+v", got)
	}
	// The command line takes precedence.
	if got := runIt(t, env, append([]string{"--nproc_per_node=1", "--rdzv-id=x"}, show...)...); got.stdout != "[petrole0]: 1 petrole x 2\n" {
		t.Errorf("got %+v", got)
	}
}

func TestNprocAuto(t *testing.T) {
	for visible, want := range map[string]string{"0,1,2": "3", "GPU-1,-1,GPU-2": "1"} {
		for _, kind := range []string{"gpu", "auto"} {
			got := runIt(t, []string{"CUDA_VISIBLE_DEVICES=" + visible}, "--nproc-per-node", kind, "--local-ranks-filter=0",
				"bash", "-c", "echo $WORLD_SIZE")
			if got.stdout != "[default0]: "+want+"\n" {
				t.Errorf("%s with %s: got %+v", kind, visible, got)
			}
		}
	}
}

func TestPrograms(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	const goMain = "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(\"go\", os.Args[1], os.Getenv(\"RANK\")) }\n"
	write("one.go", goMain, 0o644)
	write("pkg/main.go", goMain, 0o644)
	write("pkg/go.mod", "module example.com/pkg\n\ngo 1.24\n", 0o644)
	write("broken/main.go", "package main\n\nfunc main() { undefinedName() }\n", 0o644)
	write("broken/go.mod", "module example.com/broken\n\ngo 1.24\n", 0o644)
	write("script", "#!/bin/sh\necho script $1 $RANK\n", 0o755)
	write("p.py", "import os, sys\nprint('py', sys.argv[1], os.environ['RANK'])\n", 0o644)
	// A folder, or a file that is not executable, does not hide a program on PATH.
	write("true/note", "", 0o644)

	in := func(args ...string) outcome {
		t.Helper()
		cmd := golaunch(t, []string{"TMPDIR=" + filepath.Join(dir, "tmp")}, args...)
		cmd.Dir = dir
		return finish(t, cmd)
	}
	if err := os.Mkdir(filepath.Join(dir, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := map[string][]string{
		"go arg 0":     {"one.go", "arg"},
		"script arg 0": {"script", "arg"},
	}
	tests["go --flag 0"] = []string{"./pkg", "--flag"}
	if _, err := exec.LookPath("python3"); err == nil {
		tests["py arg 0"] = []string{"p.py", "arg"}
		tests["py mod 0"] = []string{"-m", "p", "mod"}
	}
	for want, args := range tests {
		if got := in(args...); got != (outcome{0, "[default0]: " + want + "\n", ""}) {
			t.Errorf("%q: got %+v", args, got)
		}
	}
	byPath := golaunch(t, []string{"TMPDIR=" + filepath.Join(dir, "tmp")}, "example.com/pkg", "--flag")
	byPath.Dir = filepath.Join(dir, "pkg")
	if got := finish(t, byPath); got != (outcome{0, "[default0]: go --flag 0\n", ""}) {
		t.Errorf("an import path: got %+v", got)
	}
	if got := in("true"); got.code != 0 {
		t.Errorf("true: got %+v", got)
	}
	if got := in("./broken"); got.code != 1 || strings.Contains(got.stderr, "--help") || !strings.Contains(got.stderr, "undefinedName") {
		t.Errorf("a build error: got %+v", got)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

// TestSignals sends a signal to a golaunch process.
func TestSignals(t *testing.T) {
	// nohup starts this test with SIGHUP ignored, and golaunch would inherit that and ignore the signal too. A signal
	// that this process handles has its default action in a child.
	handled := make(chan os.Signal, 4)
	signal.Notify(handled, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(handled)
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 143, syscall.SIGINT: 130, syscall.SIGHUP: 129, syscall.SIGQUIT: 131} {
		cmd := golaunch(t, nil, "--nproc-per-node=2", "bash", "-c",
			`trap "echo caught; exit 0" TERM INT HUP QUIT; echo ready; while :; do sleep 0.01; done`)
		lines := start(t, cmd)
		lines.expect(t, "ready", 2)
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		lines.expect(t, "caught", 2)
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("%v: exit code %d, want %d", sig, code, want)
		}
	}
}

// If a whole job is suspended while its workers stop, the suspension does not count as
// their time.
func TestSuspensionIsNotTheWorkersTime(t *testing.T) {
	cmd := golaunch(t, nil, "--nproc-per-node=2", "--shutdown-timeout=4", "bash", "-c",
		`trap "echo stopping; for i in {1..15}; do sleep 0.1; done; echo saved; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	lines := start(t, cmd)
	lines.expect(t, "ready", 2)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	lines.expect(t, "stopping", 2)
	all := processes(t, markVar+"="+t.Name())
	for _, sig := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
		for _, pid := range all {
			_ = syscall.Kill(pid, sig) // a sleep may have ended
		}
		if sig == syscall.SIGSTOP {
			time.Sleep(5 * time.Second)
		}
	}
	lines.expect(t, "saved", 2)
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
}

// If SIGHUP is ignored, as under nohup, a job ignores it too, even if no other signal is
// to be handled.
func TestIgnoredSignal(t *testing.T) {
	for handled, want := range map[string]int{"SIGHUP,SIGTERM": 143, "SIGHUP": 0} {
		end := filepath.Join(t.TempDir(), "end")
		cmd := golaunch(t, nil, "--signals-to-handle", handled, "bash", "-c",
			`echo ready; until [ -e `+end+` ]; do sleep 0.01; done`)
		nohup, err := exec.LookPath("bash")
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args = append([]string{"bash", "-c", `trap "" HUP; exec "$0" "$@"`}, cmd.Args...)
		cmd.Path = nohup
		lines := start(t, cmd)
		lines.expect(t, "ready", 1)
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		if want == 0 {
			err = os.WriteFile(end, nil, 0o644)
		} else {
			err = cmd.Process.Signal(syscall.SIGTERM)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if code := cmd.ProcessState.ExitCode(); code != want {
			t.Errorf("handling %s: exit code %d, want %d", handled, code, want)
		}
	}
}

// The job goes on when the reader of its output has ended. A broken pipe of a worker's
// own still ends the worker.
func TestReaderThatEnds(t *testing.T) {
	dir := t.TempDir()
	cmd := golaunch(t, nil, "bash", "-c", `echo ready; until [ -e `+dir+`/ended ]; do sleep 0.01; done
		echo more; yes | head -1; [ ${PIPESTATUS[0]} = 141 ] && echo >`+dir+`/saved`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines{bufio.NewScanner(out)}.expect(t, "ready", 1)
	out.Close()
	if err := os.WriteFile(dir+"/ended", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/saved"); err != nil {
		t.Error(err)
	}
}

// golaunch can be stopped while nobody reads its output, and leaves no process.
func TestStuckConsole(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fd := int(w.Fd())
	err = syscall.SetNonblock(fd, true)
	for err == nil {
		_, err = syscall.Write(fd, make([]byte, 4<<10))
	}
	if err != syscall.EAGAIN {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(fd, false); err != nil {
		t.Fatal(err)
	}
	for script, limit := range map[string]string{
		`trap "" TERM; echo >$RANK; yes`:                     "0.1", // which the shutdown timeout ends
		`trap "exit 3" TERM; echo >$RANK; sleep 1000 & wait`: "100",
	} {
		t.Run(script, func(t *testing.T) {
			cmd := golaunch(t, nil, "--nproc-per-node=2", "--shutdown-timeout", limit, "bash", "-c", script)
			cmd.Dir, cmd.Stdout, cmd.Stderr = t.TempDir(), w, w
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				_ = cmd.Wait()
				close(ended)
			}()
			deadline := time.After(soon)
			for running := true; running; {
				select {
				case <-ended:
					running = false
				case <-deadline:
					t.Error("golaunch does not end")
					_ = cmd.Process.Kill()
					<-ended
					running = false
				case <-time.After(10 * time.Millisecond): // as an impatient user does
					if ready, _ := filepath.Glob(cmd.Dir + "/[01]"); len(ready) == 2 {
						_ = cmd.Process.Signal(syscall.SIGTERM)
					}
				}
			}
			if code := cmd.ProcessState.ExitCode(); code != 143 {
				t.Errorf("exit code %d, want 143", code)
			}
			expectNone(t, "a process of the job", markVar+"="+t.Name())
		})
	}
}

// TestKilledLauncher kills golaunch by SIGKILL. No process and no folder of the job may
// be left.
func TestKilledLauncher(t *testing.T) {
	for name, script := range map[string]string{
		"worker":              `echo ready; exec sleep 1000`,
		"child":               `sleep 1000 & echo ready; wait`,
		"child's own session": `setsid sleep 1000 & echo ready; wait`,
		"suspended child":     `setsid bash -c 'kill -STOP $$' & until grep -q "^State:.T" /proc/$!/status; do :; done; echo ready; wait`,
		"suspended worker":    `echo ready; kill -STOP $$`,
		"deaf child":          `setsid bash -c 'trap "" TERM INT HUP; echo ready; while :; do sleep 0.1; done' & wait`,
		"reforking child":     `setsid bash -c 'echo ready; f() { [ $1 = 0 ] && exec sleep 1000; sleep 0.01; f $(($1-1)) & }; f 20' & exec sleep 1000`,
		"hidden environment":  `env -i sleep 1000 & echo ready; wait`,
	} {
		t.Run(name, func(t *testing.T) {
			temp := t.TempDir()
			cmd := golaunch(t, []string{"TMPDIR=" + temp}, "--nproc-per-node=2", "bash", "-c", script)
			lines := start(t, cmd)
			lines.expect(t, "ready", 2)
			job := processes(t, markVar+"="+t.Name())
			for deadline := time.Now().Add(soon); len(job) < 3 && time.Now().Before(deadline); runtime.Gosched() {
				job = processes(t, markVar+"="+t.Name()) // one that execs has no environment for a moment
			}
			if len(job) < 3 { // golaunch and two workers
				t.Fatalf("the test sees only processes %v", job)
			}
			reaper := reaperOf(t, cmd.Process.Pid)
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			expectNone(t, "a process of the job", markVar+"="+t.Name())
			expectGone(t, "the reaper", reaper)
			if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
				t.Errorf("temporary files are left: %v, %v", left, err)
			}
			if name == "hidden environment" {
				expectNoGroup(t, job)
			}
		})
	}
}

// TestKilledReaper kills the parent of the workers. golaunch reports this, and leaves no
// process.
func TestKilledReaper(t *testing.T) {
	temp := t.TempDir()
	cmd := golaunch(t, []string{"TMPDIR=" + temp}, "--nproc-per-node=2", "--max-restarts=3", "bash", "-c",
		`setsid sleep 1000 & echo ready; wait`)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	lines := start(t, cmd)
	lines.expect(t, "ready", 2)
	reaper := reaperOf(t, cmd.Process.Pid)
	if err := syscall.Kill(reaper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	want := fmt.Sprintf("golaunch: the reaper (pid %d), the parent of the workers, was killed by SIGKILL\n", reaper)
	if stderr.String() != want {
		t.Errorf("stderr is %q, want %q", &stderr, want)
	}
	expectNone(t, "a process of the job", markVar+"="+t.Name())
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

// TestKilledWithReaper kills golaunch and its reaper at the same moment. At least the
// workers die with them.
func TestKilledWithReaper(t *testing.T) {
	cmd := golaunch(t, []string{"TMPDIR=" + t.TempDir()}, "--nproc-per-node=2", "bash", "-c", `echo ready; exec sleep 1000`)
	lines := start(t, cmd)
	lines.expect(t, "ready", 2)
	reaper := reaperOf(t, cmd.Process.Pid)
	for _, kill := range []struct {
		pid int
		sig syscall.Signal
	}{{cmd.Process.Pid, syscall.SIGSTOP}, {reaper, syscall.SIGKILL}, {cmd.Process.Pid, syscall.SIGKILL}} {
		if err := syscall.Kill(kill.pid, kill.sig); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Wait()
	expectNone(t, "a worker", markVar+"="+t.Name())
}

// TestKilledAtStart kills golaunch at many moments of its start. No folder may be left.
func TestKilledAtStart(t *testing.T) {
	const runs, step = 60, 300 * time.Microsecond
	var temps []string
	for i := range runs {
		temp := t.TempDir()
		temps = append(temps, temp)
		cmd := golaunch(t, []string{"TMPDIR=" + temp}, "sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * step)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	deadline := time.Now().Add(soon)
	for i, temp := range temps {
		for {
			left, err := os.ReadDir(temp)
			if err != nil {
				t.Fatal(err)
			}
			if len(left) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Errorf("killed after %v: %v is left", time.Duration(i)*step, left)
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	expectNone(t, "a process of the job", markVar+"="+t.Name())
}
