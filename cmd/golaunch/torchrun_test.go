package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/election"
	"github.com/goddp/goddp/internal/etcdtest"
	"github.com/goddp/goddp/internal/testkit"
)

// OMP_NUM_THREADS is torchrun's: 1 for each of several workers, unless the user chose another, and unset for
// one worker.
func TestThreadsOfWorkers(t *testing.T) {
	for _, test := range []struct {
		workers int
		env     []string
		want    string
	}{{1, nil, "unset"}, {2, nil, "1"}, {2, []string{"OMP_NUM_THREADS=3"}, "3"}, {1, []string{"OMP_NUM_THREADS=3"}, "3"}} {
		cmd := golaunch(t, nil, "--nproc-per-node", strconv.Itoa(test.workers), "--local-ranks-filter=0", "bash", "-c", "echo ${OMP_NUM_THREADS-unset}")
		cmd.Args = append([]string{"env", "-u", "OMP_NUM_THREADS"}, append(test.env, cmd.Args...)...)
		cmd.Path = "/usr/bin/env"
		if got := finish(t, cmd); got.stdout != "[default0]: "+test.want+"\n" {
			t.Errorf("%d workers with %q: %+v, want %s", test.workers, test.env, got, test.want)
		}
	}
}

// Each worker sees one GPU, as GPU 0.
func TestVirtualLocalRank(t *testing.T) {
	show := []string{"--virtual-local-rank", "--nproc-per-node=2", "bash", "-c", "echo $RANK $LOCAL_RANK of $LOCAL_WORLD_SIZE [${CUDA_VISIBLE_DEVICES-unset}]"}
	for visible, want := range map[string][2]string{"": {"", ""}, "5,GPU-7,9": {"5", "GPU-7"}, "unset": {"0", "1"}} {
		cmd := golaunch(t, []string{"CUDA_VISIBLE_DEVICES=" + visible}, show...)
		if visible == "unset" {
			cmd.Args = append([]string{"env", "-u", "CUDA_VISIBLE_DEVICES"}, cmd.Args...)
			cmd.Path = "/usr/bin/env"
		}
		got := finish(t, cmd)
		for rank, gpu := range want {
			if line := fmt.Sprintf("[default%d]: %d 0 of 2 [%s]\n", rank, rank, gpu); !strings.Contains(got.stdout, line) {
				t.Errorf("CUDA_VISIBLE_DEVICES=%s: %+v, want %q", visible, got, line)
			}
		}
	}
	if got := runIt(t, []string{"CUDA_VISIBLE_DEVICES=3"}, show...); got.code == 0 || !strings.Contains(got.stderr, "CUDA_VISIBLE_DEVICES=3: 1 GPUs, and each of 2 workers") {
		t.Errorf("too few GPUs: %+v", got)
	}
}

// With --run-path, Python runs a script whatever its name ends with.
func TestRunPath(t *testing.T) {
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("import os, sys\nprint(__name__, sys.argv[1:], os.environ['RANK'])\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := runIt(t, nil, "--run-path", script, "--lr", "1"); got != (outcome{0, "[default0]: __main__ ['--lr', '1'] 0\n", ""}) {
		t.Errorf("got %+v", got)
	}
}

// Flags for one node, which torchrun also ignores there or which choose what golaunch does anyway.
func TestOneNodeTakesTheFlagsOfSeveral(t *testing.T) {
	got := runIt(t, nil, "--standalone", "--nnodes=1:1", "--rdzv-backend=c10d", "--rdzv-endpoint=host.invalid:29400", "--rdzv-id=7",
		"--rdzv-conf=timeout=900,last_call_timeout=5", "--local-addr=10.0.0.1", "bash", "-c", "echo $TORCHELASTIC_RUN_ID at $MASTER_ADDR")
	if want := (outcome{0, "[default0]: 7 at 127.0.0.1\n", ""}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// MASTER_ADDR and MASTER_PORT of one node are those that the user chose, and the store listens there. Without
// a choice, two jobs have different ports.
func TestMasterAddress(t *testing.T) {
	port, _ := testkit.Port(t)
	const show = "echo $MASTER_ADDR $MASTER_PORT; exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT"
	got := runIt(t, nil, "--master-addr=127.0.0.1", "--master-port", strconv.Itoa(port), "bash", "-c", show)
	if want := fmt.Sprintf("[default0]: 127.0.0.1 %d\n", port); got.code != 0 || got.stdout != want {
		t.Errorf("got %+v, want %q", got, want)
	}
	if ln, err := net.Listen("tcp", "[::1]:0"); err == nil {
		ln.Close()
		if got := runIt(t, nil, "--master-addr=[::1]", "bash", "-c", "echo $MASTER_ADDR"); got.stdout != "[default0]: ::1\n" {
			t.Errorf("IPv6: got %+v", got)
		}
	}
	first := golaunch(t, nil, "bash", "-c", "echo ready; read < /dev/null; sleep 1000")
	lines := start(t, first)
	lines.expect(t, "ready", 1)
	if got := runIt(t, nil, "bash", "-c", show); got.code != 0 {
		t.Errorf("a second job on this host: got %+v", got)
	}
	_ = first.Process.Kill()
	_ = first.Wait()
	expectNone(t, "a process of the job", markVar+"="+t.Name())
}

// Every failure counts as one restart, and each attempt learns its number.
func TestMaxRestarts(t *testing.T) {
	got := runIt(t, nil, "--max-restarts=2", "--nproc-per-node=2", "bash", "-c",
		`echo "attempt $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS"; [ $TORCHELASTIC_RESTART_COUNT = 1 -o $RANK = 0 ]`)
	if got.code != 0 || !strings.Contains(got.stderr, "restart 1 of 2: bash failed: rank 1 ") || strings.Contains(got.stderr, "restart 2 ") ||
		strings.Count(got.stdout, "attempt 1 of 2\n") != 2 {
		t.Errorf("got %+v", got)
	}
}

// Files are in LOG_DIR/<run id>_<random>/attempt_<n>/<local rank>, also those of local ranks of two digits.
func TestLogFiles(t *testing.T) {
	dir := t.TempDir()
	got := runIt(t, nil, "--nproc-per-node=11", "--rdzv-id=job", "--log-dir", dir, "-r", "10:3", "-t", "1:1", "--local-ranks-filter=1,10",
		"bash", "-c", `echo "out $RANK"; echo "err $RANK" >&2`)
	if got != (outcome{0, "[default1]: out 1\n", "[default1]: err 1\n"}) {
		t.Errorf("got %+v", got)
	}
	for name, want := range map[string]string{"10/stdout.log": "out 10\n", "10/stderr.log": "err 10\n", "1/stdout.log": "out 1\n"} {
		files, _ := filepath.Glob(filepath.Join(dir, "job_*", "attempt_0", name))
		if len(files) != 1 {
			t.Errorf("files %v for %s", files, name)
		} else if text, err := os.ReadFile(files[0]); err != nil || string(text) != want {
			t.Errorf("%s holds %q, %v", name, text, err)
		}
	}
}

// The root cause is in the file that TORCHELASTIC_ERROR_FILE names to golaunch, with the exit code. The worker's
// own file is not that one.
func TestErrorFileOfTheLauncher(t *testing.T) {
	file := filepath.Join(t.TempDir(), "error.json")
	got := runIt(t, []string{"TORCHELASTIC_ERROR_FILE=" + file}, "bash", "-c",
		`echo '{"message":{"message":"out of luck","extraInfo":{"timestamp":"1"}}}' >$TORCHELASTIC_ERROR_FILE; exit 3`)
	var found struct {
		Message struct {
			Message   string
			ErrorCode int
		}
	}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &found)
	}
	if err != nil || got.code != 3 || found.Message.Message != "out of luck" || found.Message.ErrorCode != 3 {
		t.Errorf("exit code %d, %s, %v", got.code, text, err)
	}
}

// onNodes runs golaunch once for each list of flags, all at once, and returns the outcomes.
func onNodes(t *testing.T, flags [][]string, program ...string) []outcome {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the nodes' common secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	outcomes := make([]outcome, len(flags))
	var wg sync.WaitGroup
	for i := range flags {
		cmd := golaunch(t, []string{"GODDP_TOKEN_FILE=" + token}, append(flags[i], program...)...)
		wg.Go(func() { outcomes[i] = finish(t, cmd) })
	}
	wg.Wait()
	return outcomes
}

const showRanks = `echo "$RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE, $TORCHELASTIC_RUN_ID, agent's store $TORCHELASTIC_USE_AGENT_STORE"`

// checkRanks checks that the workers of two nodes with one and two workers have the ranks that showRanks prints.
func checkRanks(t *testing.T, outcomes []outcome, id string) {
	t.Helper()
	all := ""
	for i, got := range outcomes {
		if all += got.stdout; got.code != 0 {
			t.Errorf("node %d: %+v", i, got)
		}
	}
	for rank := range 3 {
		for node := range 2 {
			line := fmt.Sprintf("%d of 3, node %d of 2, %s, agent's store False\n", rank, node, id)
			if rank != 1 && strings.Contains(all, line) != (node == rank/2) {
				t.Errorf("the workers print %q: line %q", all, line)
			}
		}
	}
}

// The user numbers the nodes, and names node 0 by --master-addr or --rdzv-endpoint.
func TestStaticNodes(t *testing.T) {
	_, endpoint := testkit.Port(t)
	common := []string{"--nnodes=2", "--rdzv-endpoint=" + endpoint}
	checkRanks(t, onNodes(t, [][]string{
		append([]string{"--node-rank=1", "--nproc-per-node=2"}, common...),
		append([]string{"--node-rank=0", "--nproc-per-node=1"}, common...),
	}, "bash", "-c", showRanks), "none")
}

// The node at the endpoint hosts the rendezvous, by whichever of its names the others know it.
func TestC10dNodes(t *testing.T) {
	port, _ := testkit.Port(t)
	flags := func(host string, workers int) []string {
		return []string{"--nnodes=2:2", "--rdzv-backend=c10d", "--rdzv-id=seven", fmt.Sprintf("--rdzv-endpoint=%s:%d", host, port), fmt.Sprintf("--nproc-per-node=%d", workers)}
	}
	got := onNodes(t, [][]string{flags("localhost", 1), flags("127.0.0.1", 1)}, "bash", "-c", showRanks)
	for i, g := range got {
		if g.code != 0 || !strings.Contains(g.stdout, " of 2, seven, ") {
			t.Errorf("node %d: %+v", i, g)
		}
	}
}

// startEtcd starts an etcd, and has golaunch find golaunch-etcd. It returns etcd's address.
func startEtcd(t *testing.T) string {
	t.Helper()
	c := etcdtest.Start(t, 1)
	dir := t.TempDir()
	if err := os.Symlink(os.Args[0], filepath.Join(dir, election.Program)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return strings.TrimPrefix(c.Endpoints[0], "http://")
}

// The nodes elect the host in etcd.
func TestEtcdNodes(t *testing.T) {
	flags := []string{"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-id=job", "--rdzv-endpoint=" + startEtcd(t)}
	for i, got := range onNodes(t, [][]string{flags, flags}, "bash", "-c", showRanks) {
		if got.code != 0 || !strings.Contains(got.stdout, " of 2, job, ") {
			t.Errorf("node %d: %+v", i, got)
		}
	}
}

// Too few nodes end the job when the time to join is over, with a message that says how many came.
func TestTooFewNodes(t *testing.T) {
	_, endpoint := testkit.Port(t)
	for _, name := range []string{"join_timeout", "timeout"} {
		got := onNodes(t, [][]string{{"--nnodes=2", "--rdzv-endpoint=" + endpoint, "--rdzv-conf=" + name + "=0.3"}}, "true")[0]
		if got != (outcome{1, "", "golaunch: too few nodes joined: 1 of at least 2 within 0.3 s (--rdzv-conf join_timeout=0.3)\n"}) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

// With --insecure, nodes need no token. With another token, a node is refused.
func TestNodesWithoutATokenAndWithAnother(t *testing.T) {
	_, endpoint := testkit.Port(t)
	flags := []string{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=" + endpoint, "--rdzv-conf=join_timeout=2"}
	var wg sync.WaitGroup
	for range 2 {
		cmd := golaunch(t, nil, append(flags, "--insecure", "true")...)
		wg.Go(func() {
			if got := finish(t, cmd); got.code != 0 {
				t.Errorf("--insecure: got %+v", got)
			}
		})
	}
	wg.Wait()
	all := ""
	outcomes := make([]outcome, 2)
	for i := range outcomes {
		token := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(token, []byte(fmt.Sprint("the secret of node ", i)), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := golaunch(t, nil, append(flags, "--token-file", token, "true")...)
		wg.Go(func() { outcomes[i] = finish(t, cmd) })
	}
	wg.Wait()
	for i, got := range outcomes {
		if all += got.stderr; got.code != 1 {
			t.Errorf("node %d with a token of its own: %+v", i, got)
		}
	}
	if !strings.Contains(all, "it has another token") {
		t.Errorf("the nodes say %q", all)
	}
}

// A signal that the user names is forwarded to the workers and ends the job.
func TestSignalsToHandle(t *testing.T) {
	cmd := golaunch(t, nil, "--signals-to-handle=SIGUSR1", "bash", "-c", `trap "echo caught; exit 0" USR1; echo ready; while :; do sleep 0.01; done`)
	lines := start(t, cmd)
	lines.expect(t, "ready", 1)
	if err := cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	lines.expect(t, "caught", 1)
	_ = cmd.Wait()
	if code, want := cmd.ProcessState.ExitCode(), 128+int(syscall.SIGUSR1); code != want {
		t.Errorf("exit code %d, want %d", code, want)
	}
}

// golaunch runs jobs that set torchrun's variables for what it does not have.
func TestVariablesWithoutEffect(t *testing.T) {
	env := []string{"TORCHELASTIC_SIGNALS_TO_HANDLE=SIGUSR1", "TORCHELASTIC_ENABLE_FILE_TIMER=1", "TORCHELASTIC_HEALTH_CHECK_PORT=29999", "LOGLEVEL=DEBUG"}
	got := runIt(t, env, "bash", "-c", "echo ${TORCHELASTIC_TIMER_FILE-no timer}; ! exec 3<>/dev/tcp/127.0.0.1/29999", "--signals-to-handle=SIGTERM")
	if got.code != 0 || got.stdout != "[default0]: no timer\n" || strings.Contains(got.stderr, "golaunch") {
		t.Errorf("got %+v", got)
	}
}
