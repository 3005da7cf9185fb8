package launcher

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/launcher/internal/failure"
	"github.com/goddp/goddp/launcher/internal/rendezvous"
)

// nodeResult is what Run returned on a node.
type nodeResult struct {
	*job
	result *Result
	err    error
}

// startNodes starts a job of several nodes, all on this host: the agents are in this process. The returned
// function waits for the ends of all agents, and checks that no worker is left.
func startNodes(t *testing.T, n *Nodes, jobs ...*job) (wait func() []nodeResult) {
	t.Helper()
	if n.Endpoint == "" {
		_, n.Endpoint = testkit.Port(t)
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("the nodes' common secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	results := make([]nodeResult, len(jobs))
	var wg sync.WaitGroup
	for i, j := range jobs {
		nodes := *n
		nodes.Rank, nodes.Command = i, []string{"whose programs differ in what they show"}
		j.cfg.Nodes, j.cfg.RunID = &nodes, "job"
		if j.cfg.Env == nil {
			j.cfg.Env = os.Environ()
		}
		j.cfg.Env = append(j.cfg.Env, "GODDP_TOKEN_FILE="+token)
		wg.Go(func() {
			result, err := j.run(t)
			results[i] = nodeResult{j, result, err}
		})
	}
	return func() []nodeResult {
		wg.Wait()
		return results
	}
}

func TestNodesShareAWorld(t *testing.T) {
	print := `echo "$RANK/$WORLD_SIZE local $LOCAL_RANK/$LOCAL_WORLD_SIZE node $GROUP_RANK/$GROUP_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT $TORCHELASTIC_USE_AGENT_STORE"`
	var masters []string
	for i, r := range startNodes(t, &Nodes{Min: 2, Max: 2, Static: true}, shell(2, print), shell(1, print))() {
		if r.err != nil {
			t.Fatalf("node %d: %v\n%s", i, r.err, &r.job.err)
		}
		for local, rank := range [][]int{{0, 1}, {2}}[i] {
			want := fmt.Sprintf(`%d/3 local %d/%d node %d/2 (\S+) False`, rank, local, 2-i, i)
			found := regexp.MustCompile(want).FindStringSubmatch(r.out.String())
			if found == nil {
				t.Errorf("node %d printed %q, want %s", i, &r.out, want)
				continue
			}
			masters = append(masters, found[1])
		}
	}
	for _, m := range masters {
		if m != masters[0] {
			t.Errorf("the workers have different masters: %v", masters)
		}
	}
}

// Every node reports the same root cause, and ends with its exit code.
func TestNodesReportOneRootCause(t *testing.T) {
	script := `if [ $RANK = 1 ]; then echo "out of luck" >&2; exit 7; fi; sleep 60`
	var roots []string
	for i, r := range startNodes(t, &Nodes{Min: 2, Max: 2, Static: true}, shell(1, script), shell(2, script))() {
		var failed *FailureError
		if !errors.As(r.err, &failed) || failed.root.Rank != 1 || failed.root.Node != 1 || ExitCode(r.err) != 7 {
			t.Fatalf("node %d: %v\n%s", i, r.err, &r.job.err)
		}
		_, root, _ := strings.Cut(failed.Report(), "Root Cause")
		root, _, _ = strings.Cut(root, frameLight)
		root, _, _ = strings.Cut(root, frameHeavy)
		if !strings.Contains(root, "  | out of luck\n") {
			t.Errorf("node %d reports%s", i, root)
		}
		roots = append(roots, root)
		if want := 1; len(failed.stopped) != want {
			t.Errorf("node %d: %d stopped workers, want %d", i, len(failed.stopped), want)
		}
	}
	if roots[0] != roots[1] {
		t.Errorf("the nodes report%s and%s", roots[0], roots[1])
	}
}

// A failure on one node restarts the workers of all nodes, and counts once. A program that has not declared that it
// survives does so too with --on-failure replace.
func TestNodesRestartTogether(t *testing.T) {
	for _, onFailure := range []OnFailure{Restart, Replace} {
		t.Run(onFailure.String(), func(t *testing.T) { restartTogether(t, onFailure) })
	}
}

func restartTogether(t *testing.T, onFailure OnFailure) {
	script := `echo "round $TORCHELASTIC_RESTART_COUNT"; if [ $TORCHELASTIC_RESTART_COUNT != 0 ]; then exit 0; fi
		if [ $RANK = 1 ]; then exit 3; fi; sleep 60`
	jobs := []*job{shell(1, script), shell(1, script)}
	for _, j := range jobs {
		j.cfg.MaxRestarts, j.cfg.OnFailure = 1, onFailure
	}
	for i, r := range startNodes(t, &Nodes{Min: 2, Max: 2, Static: true}, jobs...)() {
		if r.err != nil || r.result.Restarts != 1 || !strings.Contains(r.out.String(), "round 1") || !strings.Contains(r.job.err.String(), "restart 1 of 1: ") {
			t.Errorf("node %d: %v, %+v, printed %q\n%s", i, r.err, r.result, &r.out, &r.job.err)
		}
	}
}

// A program that cannot be started on one node ends the job on all nodes, whatever restarts are left.
func TestNodesEndIfOneCannotStart(t *testing.T) {
	jobs := []*job{shell(1, "sleep 60"), {cfg: Config{Args: []string{"/nonexistent"}, Workers: 1}}}
	for _, j := range jobs {
		j.cfg.MaxRestarts = 3
	}
	for i, r := range startNodes(t, &Nodes{Min: 2, Max: 2, Static: true}, jobs...)() {
		if want := []int{1, 2}[i]; ExitCode(r.err) != want || !strings.Contains(r.err.Error(), "cannot start rank 1: ") {
			t.Errorf("node %d: %v, exit code %d, want %d", i, r.err, ExitCode(r.err), want)
		}
	}
}

// A node in reserve reports the failure of the job, or that it ran nothing, and ends as the others do.
func TestNodeInReserveEndsWithTheJob(t *testing.T) {
	for _, code := range []int{9, 0} {
		if code == 0 && !testkit.IsLong() {
			continue
		}
		end := filepath.Join(t.TempDir(), "end")
		script := fmt.Sprintf(`until [ -e %s ]; do sleep 0.05; done; [ $RANK = 0 ] || exit %d`, end, code)
		_, endpoint := testkit.Port(t)
		n := &Nodes{Min: 2, Max: 2, Endpoint: endpoint}
		jobs := []*job{shell(1, script), shell(1, script)}
		wait := startNodes(t, n, jobs...)
		reserve := shell(1, script)
		await := func(j *job, text string) {
			t.Helper()
			select {
			case <-j.err.contains(text):
			case <-time.After(soon):
				t.Fatalf("no %q in\n%s", text, &j.err)
			}
		}
		for _, j := range jobs {
			await(j, "round 0: this is node ")
		}
		waitReserve := startNodes(t, n, reserve)
		await(reserve, "in reserve: round 0 has 2 nodes")
		if err := os.WriteFile(end, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for i, r := range append(wait(), waitReserve()...) {
			if ExitCode(r.err) != code {
				t.Errorf("node %d: %v, want exit code %d\n%s", i, r.err, code, &r.job.err)
			}
			const nothing = "golaunch: this node took part in no round and ran nothing; if it was meant for another job, give that job its own --rdzv-id"
			if ranNothing := strings.Contains(r.job.err.String(), nothing); ranNothing != (r.job == reserve) {
				t.Errorf("node %d says that it ran nothing: %v\n%s", i, ranNothing, &r.job.err)
			}
			if code != 0 && !strings.Contains(r.job.err.String(), "\n  node      : 1\n") {
				t.Errorf("node %d does not name the node that failed:\n%s", i, &r.job.err)
			}
		}
	}
}

// A job of several nodes needs a token, or the user's consent.
func TestNodesNeedAToken(t *testing.T) {
	j := shell(1, "true")
	j.cfg.Nodes = &Nodes{Min: 2, Max: 2, Endpoint: "127.0.0.1:1"}
	if _, err := j.run(t); !errors.Is(err, ErrNoToken) {
		t.Errorf("got error %v", err)
	}
}

// If a node of an elastic job receives a signal, the others go on without it. A node that comes later is
// taken in.
func TestElasticJob(t *testing.T) {
	script := `trap 'exit 0' TERM; echo "$WORLD_SIZE ranks"; until [ -e ` + filepath.Join(t.TempDir(), "end") + ` ]; do sleep 0.05 & wait; done`
	end := regexp.MustCompile(`-e (\S+) `).FindStringSubmatch(script)[1]
	_, endpoint := testkit.Port(t)
	n := &Nodes{Min: 1, Max: 3, Endpoint: endpoint, LastCall: 200 * time.Millisecond}
	jobs := []*job{shell(1, script), shell(1, script), shell(1, script)}
	signals := make([]chan os.Signal, len(jobs))
	for i, j := range jobs {
		signals[i] = make(chan os.Signal, 1)
		j.cfg.Signals = signals[i]
	}
	wait := startNodes(t, n, jobs...)
	await := func(j *job, text string) {
		t.Helper()
		select {
		case <-j.out.contains(text):
		case <-time.After(soon):
			t.Fatalf("no %q in %q\n%s", text, &j.out, &j.err)
		}
	}
	for _, j := range jobs {
		await(j, "3 ranks")
	}
	leaver := slices.IndexFunc(jobs, func(j *job) bool { return strings.Contains(j.err.String(), "this is node 2 ") }) // not the host
	signals[leaver] <- syscall.SIGTERM
	await(jobs[(leaver+1)%3], "2 ranks")
	late := shell(1, script)
	waitLate := startNodes(t, n, late)
	await(late, "3 ranks")
	if err := os.WriteFile(end, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i, r := range append(wait(), waitLate()...) {
		var signal *SignalError
		if i == leaver && errors.As(r.err, &signal) {
			continue
		}
		if r.err != nil || r.result.Restarts != 0 {
			t.Errorf("node %d: %v, %+v\n%s", i, r.err, r.result, &r.job.err)
		}
	}
}

// If the node that hosts the rendezvous receives a signal, and no other can host, the job ends on the others
// with that cause.
func TestHostOfTheRendezvousReceivesASignal(t *testing.T) {
	jobs := []*job{shell(1, `echo ready; exec sleep 60`), shell(1, `echo ready; exec sleep 60`)}
	signals := make([]chan os.Signal, len(jobs))
	for i, j := range jobs {
		signals[i] = make(chan os.Signal, 1)
		j.cfg.Signals = signals[i]
	}
	wait := startNodes(t, &Nodes{Min: 1, Max: 2}, jobs...)
	for _, j := range jobs {
		select {
		case <-j.out.contains("ready"):
		case <-time.After(soon):
			t.Fatalf("no worker in %q\n%s", &j.out, &j.err)
		}
	}
	host := slices.IndexFunc(jobs, func(j *job) bool { return strings.Contains(j.err.String(), "this is node 0 ") })
	signals[host] <- syscall.SIGTERM
	results := wait()
	var signal *SignalError
	if err := results[host].err; !errors.As(err, &signal) {
		t.Errorf("the host: %v", err)
	}
	var failed *FailureError
	if err := results[1-host].err; !errors.As(err, &failed) || failed.root.Node != 0 || failed.root.Why != "left: SIGTERM" ||
		!strings.HasSuffix(failed.reason, ") left: SIGTERM; only --rdzv-backend=etcd can replace it") {
		t.Errorf("the other node: %v\n%s", err, &jobs[1-host].err)
	}
}

// A round that follows another says why, unless the user knows: the order to stop was about the same failure.
func TestRoundSaysOnceWhyItBegins(t *testing.T) {
	lost := failure.Failure{Kind: failure.Lost, Node: 1, Host: "b", Rank: 2, Ranks: 2, Why: "lost: its agent ended", Time: time.Now()}
	effect := failure.Failure{Node: 2, Host: "c", Rank: 4, Status: failure.Status{Code: 1}, Time: lost.Time.Add(time.Millisecond)}
	left := failure.Failure{Kind: failure.Left, Node: 1, Host: "b", Rank: 2, Ranks: 2, Why: "left: SIGTERM", Time: time.Now()}
	about := func(f *failure.Failure) *rendezvous.StopOrder {
		return &rendezvous.StopOrder{Reason: "one text", Failure: f}
	}
	for name, c := range map[string]struct {
		shown, stopped *rendezvous.StopOrder
		failures       []failure.Failure
		want           string
	}{
		"the cause was shown":            {about(&lost), nil, []failure.Failure{lost, effect}, ""},
		"an effect was shown":            {about(&effect), nil, []failure.Failure{effect, lost}, "golaunch: going on: node 1 (b) lost: its agent ended\n"},
		"nothing was shown":              {nil, about(&lost), []failure.Failure{lost}, "golaunch: going on: node 1 (b) lost: its agent ended\n"},
		"the new host knows no failures": {nil, about(nil), nil, "golaunch: going on: one text\n"},
		"a node left by agreement":       {nil, nil, []failure.Failure{left}, "golaunch: going on: node 1 (b) left: SIGTERM\n"},
		"nodes joined":                   {about(nil), nil, nil, ""},
		"the ranks agreed":               {nil, nil, nil, ""},
	} {
		var out bytes.Buffer
		a := &agent{cfg: &Config{Name: "train"}, console: newConsole(&out, &out), attempt: &attempt{round: &rendezvous.Round{Nodes: 3}, shown: c.shown, stopped: c.stopped}}
		if c.stopped == nil {
			a.stopped = c.shown
		}
		a.logRound(&rendezvous.Round{Number: 1, Nodes: 2, Failures: c.failures})
		if err := a.console.Close(soon, nil); err != nil || out.String() != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, &out, err, c.want)
		}
	}
}

// A node that is alone says at once that it stops its workers because another has joined.
func TestLoneNodeSaysWhyItStops(t *testing.T) {
	var out bytes.Buffer
	a := &agent{cfg: &Config{Nodes: &Nodes{}}, core: &core{phase: running}, console: newConsole(&out, &out), attempt: &attempt{round: &rendezvous.Round{Nodes: 1}}}
	a.ordered(&rendezvous.Order{Stop: &rendezvous.StopOrder{Reason: "1 node joined"}})
	if err := a.console.Close(soon, nil); err != nil || out.String() != "golaunch: stopping the workers: 1 node joined\n" {
		t.Errorf("got %q, %v", &out, err)
	}
}

// The line by which a node stops its workers says if the first worker that failed blames another.
func TestStopNamesWhomTheFailedWorkerBlames(t *testing.T) {
	script := `if [ $RANK = 1 ]; then
			echo '{"message": {"message": "rank 0 lost", "extraInfo": {"caused_by": "0"}}}' > $TORCHELASTIC_ERROR_FILE; exit 7
		fi; sleep 60`
	want := []string{") rank 1 exited with code 7 because of rank 0\n", " exited with code 7 because of rank 0; stopping the 1 still running"}
	for i, r := range startNodes(t, &Nodes{Min: 2, Max: 2, Static: true}, shell(1, script), shell(2, script))() {
		if !strings.Contains(r.job.err.String(), want[i]) {
			t.Errorf("node %d lacks %q:\n%s", i, want[i], &r.job.err)
		}
	}
}
